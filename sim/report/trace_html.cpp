// The page draws on a canvas: a step of a large plan has a hundred thousand boxes, more than a browser keeps
// as SVG elements.
#include <fmt/core.h>

#include <iterator>
#include <map>
#include <string_view>

#include "core/errors.h"
#include "sim/report/trace.h"

namespace sim {

namespace {

using schedule::ComputePhase;
using schedule::Instruction;
using schedule::InstructionKind;

constexpr const char* page_head = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>)";
constexpr const char* page_style = R"(</title>
<style>
body{font:14px/1.4 system-ui,sans-serif;margin:1em 1.5em;color:#222}
pre{background:#f5f5f5;padding:.8em;overflow:auto;font-size:12px}
canvas{width:100%;border:1px solid #ccc;display:block;cursor:crosshair}
#hint{color:#666;margin:.3em 0}#label{position:fixed;background:#222;color:#fff;padding:.25em .5em;
 border-radius:3px;font-size:12px;pointer-events:none;display:none}
.key span{display:inline-block;width:.9em;height:.9em;margin:0 .3em 0 1em;vertical-align:-.1em}
</style></head><body>
)";
constexpr const char* page_script = R"JS(
const colours=['#4c8bf5','#9ec1ff','#f4a742','#f7c98b','#d9822b','#8a6fd1','#3aa981','#7fd1ae','#b0b0b0',
 '#d05a6e'];
const kinds=['forward','recompute','backward','input gradient','weight gradient','tensor collective','send',
 'receive','optimizer','data collective'];
document.getElementById('key').innerHTML=kinds.map((k,
 i)=>`<span style="background:${colours[i]}"></span>${k}`).join('');
const canvas=document.getElementById('lanes'),pen=canvas.getContext('2d'),
 box=document.getElementById('label');
const lanes=[];data.performers.forEach(p=>p.lanes.forEach((l,i)=>lanes.push({
 name:(i==0?p.name+' ':'')+l.stream,spans:l.spans,first:i==0})));
const mem=data.performers.map(p=>({name:p.name,samples:p.memory}));
const left=190,laneHeight=18,gap=6,memHeight=46;
let from=0,to=data.makespan;
function height(){return lanes.length*laneHeight+data.performers.length*gap+mem.length*(memHeight+4)+24}
function y(i){let k=0;for(let j=0;j<=i;j++)if(lanes[j].first)k++;return 20+i*laneHeight+(k-1)*gap}
const tops=lanes.map((_,i)=>y(i));
function draw(){
 const r=window.devicePixelRatio||1,w=canvas.clientWidth,h=height();
 canvas.style.height=h+'px';canvas.width=w*r;canvas.height=h*r;pen.setTransform(r,0,0,r,0,0);pen.clearRect(0,
 0,w,h);
 pen.font='11px system-ui,sans-serif';pen.textBaseline='middle';
 const scale=(w-left)/(to-from),x=t=>left+(t-from)*scale;
 pen.fillStyle='#666';for(let i=0;i<=8;i++){const t=from+(to-from)*i/8;pen.fillRect(x(t),16,1,h);
 pen.fillText(time(t),Math.min(x(t)+3,w-60),8)}
 pen.fillStyle='#fff';
 lanes.forEach((l,i)=>{const top=tops[i];pen.fillStyle=l.first?'#222':'#777';pen.fillText(l.name,4,
 top+laneHeight/2);
  pen.save();pen.beginPath();pen.rect(left,top,w-left,laneHeight);pen.clip();
  for(const s of l.spans){if(s[0]+s[1]<from||s[0]>to)continue;const a=x(s[0]),b=Math.max(.5,s[1]*scale);
 pen.fillStyle=colours[s[2]];pen.fillRect(a,top+1,b,laneHeight-2);
   if(b>26){pen.fillStyle='#111';pen.save();pen.beginPath();pen.rect(a,top,b,laneHeight);pen.clip();
 pen.fillText(data.labels[s[3]],a+3,top+laneHeight/2);pen.restore()}}
  pen.restore()});
 let top=(lanes.length?tops[lanes.length-1]+laneHeight:20)+10;
 const most=Math.max(1e-9,...mem.map(m=>Math.max(0,...m.samples.map(s=>s[1]))));
 mem.forEach(m=>{pen.fillStyle='#222';pen.fillText(m.name+' memory, peak '+Math.max(0,
 ...m.samples.map(s=>s[1])).toFixed(2)+' GiB',4,top+8);
  pen.save();pen.beginPath();pen.rect(left,top,w-left,memHeight);pen.clip();pen.fillStyle='#b9d6f2';
 pen.beginPath();pen.moveTo(x(0),top+memHeight);
  let last=0;for(const s of m.samples){pen.lineTo(x(s[0]),top+memHeight*(1-last/most));pen.lineTo(x(s[0]),
 top+memHeight*(1-s[1]/most));last=s[1]}
  pen.lineTo(x(data.makespan),top+memHeight*(1-last/most));pen.lineTo(x(data.makespan),top+memHeight);
 pen.fill();pen.restore();top+=memHeight+4})}
function time(t){return t>=1e6?(t/1e6).toFixed(3)+' s':t>=1e3?(t/1e3).toFixed(3)+' ms':t.toFixed(2)+' us'}
function at(e){const r=canvas.getBoundingClientRect();return{x:e.clientX-r.left,y:e.clientY-r.top,
 t:from+(e.clientX-r.left-left)/(r.width-left)*(to-from)}}
canvas.addEventListener('wheel',e=>{e.preventDefault();const p=at(e),f=e.deltaY<0?.8:1.25;
 let a=p.t-(p.t-from)*f,b=p.t+(to-p.t)*f;from=Math.max(0,a);to=Math.min(data.makespan,b);draw()},{
 passive:false});
let grabbed=null;canvas.addEventListener('mousedown',e=>grabbed=at(e).t);addEventListener('mouseup',
 ()=>grabbed=null);
canvas.addEventListener('dblclick',()=>{from=0;to=data.makespan;draw()});
canvas.addEventListener('mousemove',e=>{const p=at(e);if(grabbed!==null){
 const d=Math.min(Math.max(grabbed-p.t,-from),data.makespan-to);from+=d;to+=d;draw();return}
 const i=tops.findIndex(t=>p.y>=t&&p.y<t+laneHeight);
 const s=i<0?null:lanes[i].spans.find(s=>p.t>=s[0]&&p.t<=s[0]+s[1]);
 if(!s){box.style.display='none';return}box.textContent=data.labels[s[3]]+' · '+time(s[0])+' + '+time(s[1]);
 box.style.display='block';box.style.left=e.clientX+12+'px';box.style.top=e.clientY+12+'px'});
addEventListener('resize',draw);draw();
)JS";

std::string escaped(std::string_view text) {
    std::string result;
    for (char c : text) {
        if (c == '<') result += "&lt;";
        else if (c == '>') result += "&gt;";
        else if (c == '&') result += "&amp;";
        else result += c;
    }
    return result;
}

// Index into `colours` of the page.
int colour(const Instruction& instruction) {
    switch (instruction.kind) {
        case InstructionKind::compute:
            switch (instruction.phase) {
                case ComputePhase::forward: return 0;
                case ComputePhase::recompute: return 1;
                case ComputePhase::backward: return 2;
                case ComputePhase::backward_input: return 3;
                case ComputePhase::backward_weight: return 4;
            }
            throw core::InternalError("broken promise: every phase has a colour");
        case InstructionKind::send: return 6;
        case InstructionKind::receive: return 7;
        case InstructionKind::collective: return instruction.group == schedule::GroupKind::tensor ? 5 : 9;
        case InstructionKind::copy: return 9;
        case InstructionKind::optimizer_step:
        case InstructionKind::zero_gradients:
        case InstructionKind::gradient_norm:
        case InstructionKind::update_norm: return 8;
    }
    throw core::InternalError("broken promise: every instruction has a colour");
}

}  // namespace

std::string html_timeline(const schedule::Program& program, const schedule::Timeline& timeline,
                          const schedule::MemoryTimeline& memory, const std::string& title,
                          const std::string& report) {
    core::require(timeline.spans.size() == timeline.class_of.size(),
                  "a page needs the spans of every performer");
    std::map<std::string, std::size_t> index_of;  // labels are shared: many micro-batches repeat them
    std::string performers;
    auto out = std::back_inserter(performers);
    for (std::size_t p = 0; p < timeline.spans.size(); ++p) {
        const schedule::RankProgram& list = program.classes[timeline.class_of[p]];
        fmt::format_to(out, "{}{{\"name\":\"rank {}\",\"lanes\":[", p == 0 ? "" : ",\n", timeline.rank[p]);
        const char* lane_separator = "";
        for (int stream = 0; stream < schedule::stream_count; ++stream) {
            std::string spans;
            for (const schedule::Span& span : timeline.spans[p]) {
                const Instruction& instruction = list.instructions[span.instruction];
                if (core::position_of(instruction.stream) != stream) continue;
                const std::size_t text =
                    index_of.try_emplace(label(program, instruction, true), index_of.size()).first->second;
                fmt::format_to(std::back_inserter(spans), "{}[{:.6g},{:.6g},{},{}]", spans.empty() ? "" : ",",
                               span.start.value * 1e6, (span.end - span.start).value * 1e6,
                               colour(instruction), text);
            }
            if (spans.empty()) continue;
            fmt::format_to(out, "{}{{\"stream\":\"{}\",\"spans\":[{}]}}", lane_separator,
                           schedule::name_of(static_cast<schedule::Stream>(stream)), spans);
            lane_separator = ",";
        }
        performers += "],\"memory\":[";
        if (p < memory.samples.size())
            for (std::size_t s = 0; s < memory.samples[p].size(); ++s) {
                core::Bytes total;
                for (core::Bytes bytes : memory.samples[p][s].bytes) total += bytes;
                fmt::format_to(out, "{}[{:.6g},{:.5g}]", s == 0 ? "" : ",",
                               memory.samples[p][s].time.value * 1e6, core::to_gibibytes(total));
            }
        performers += "]}";
    }
    std::vector<std::string_view> labels(index_of.size());
    for (const auto& [text, index] : index_of) labels[index] = text;
    std::string names;
    for (std::string_view text : labels)
        fmt::format_to(std::back_inserter(names), "{}\"{}\"", names.empty() ? "" : ",", text);

    return std::string(page_head) + escaped(title) + page_style + "<h2>" + escaped(title) + "</h2>\n" +
           "<p id=\"hint\">Wheel zooms, drag moves, double click shows all.</p><p class=\"key\" "
           "id=\"key\"></p>\n<canvas id=\"lanes\"></canvas><div "
           "id=\"label\"></div>\n<pre>" +
           escaped(report) + "</pre>\n<script>\n" +
           fmt::format("const data={{\"makespan\":{:.6g},\"labels\":[{}],\"performers\":[{}]}};\n",
                       timeline.makespan.value * 1e6, names, performers) +
           page_script + "</script></body></html>\n";
}

}  // namespace sim
