#include "api/offers/offer_picture.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include <fmt/core.h>

#include "api/offers/offer_report.h"

namespace api {

namespace {

constexpr double width = 1200, height = 560;                     // pixels
constexpr double left = 90, right = 350, top = 50, bottom = 60;  // margins
constexpr double least_radius = 4, most_radius = 11;             // of a dot

// Okabe and Ito's palette (2008): told apart by colour-blind readers too.
constexpr const char* colours[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"};

const char* colour_of(jobs::Purchase purchase) {
    static_assert(std::size(colours) == std::size(jobs::all_purchases));
    const auto* found = std::find(std::begin(jobs::all_purchases), std::end(jobs::all_purchases), purchase);
    return colours[found - std::begin(jobs::all_purchases)];
}

struct Axis {
    double step = 1, end = 1;  // of the ticks
};

// About five ticks at 1, 2 or 5 times a power of ten, the last at or above the greatest value.
Axis axis_to(double greatest) {
    constexpr double ticks = 5;
    const double raw = std::max(greatest, 1e-9) / ticks;
    const double power = std::pow(10, std::floor(std::log10(raw)));
    const double digit = raw / power;
    const double step = power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
    return {step, step * std::ceil(greatest / step)};
}

struct Frame {
    Axis hours, usd;
    double x(double value) const { return left + (width - left - right) * value / hours.end; }
    double y(double value) const { return height - bottom - (height - top - bottom) * value / usd.end; }
};

std::string axes_of(const Frame& frame) {
    std::string text;
    constexpr double half_a_tick = 0.5;
    for (double h = 0; h <= frame.hours.end + half_a_tick * frame.hours.step; h += frame.hours.step)
        text += fmt::format(
            "<line x1='{0:.1f}' y1='{1:.1f}' x2='{0:.1f}' y2='{2:.1f}' class='grid'/>"
            "<text x='{0:.1f}' y='{3:.1f}' text-anchor='middle'>{4:g}</text>\n",
            frame.x(h), top, height - bottom, height - bottom + 18, h);
    for (double usd = 0; usd <= frame.usd.end + half_a_tick * frame.usd.step; usd += frame.usd.step)
        text += fmt::format(
            "<line x1='{0:.1f}' y1='{1:.1f}' x2='{2:.1f}' y2='{1:.1f}' class='grid'/>"
            "<text x='{3:.1f}' y='{4:.1f}' text-anchor='end'>{5:g}</text>\n",
            left, frame.y(usd), width - right, left - 8, frame.y(usd) + 4, usd);
    text += fmt::format("<text x='{:.1f}' y='{:.1f}' text-anchor='middle'>expected hours</text>\n",
                        (left + width - right) / 2, height - 18);
    text += fmt::format(
        "<text x='18' y='{0:.1f}' text-anchor='middle' transform='rotate(-90 18 {0:.1f})'>"
        "expected USD</text>\n",
        (top + height - bottom) / 2);
    return text;
}

// The offers of the front from the fastest to the slowest.
std::string front_line(const Frame& frame, const Offers& offers) {
    std::vector<std::pair<double, double>> points;
    for (const OfferRow& row : offers.rows)
        if (row.is_on_front)
            points.emplace_back(row.offer.distribution.hours.mean, row.offer.distribution.usd->mean);
    std::sort(points.begin(), points.end());
    std::string text = "<polyline class='front' points='";
    for (const auto& [hours, usd] : points)
        text += fmt::format("{:.1f},{:.1f} ", frame.x(hours), frame.y(usd));
    return text + "'/>\n";
}

// Offers of the front have numbers, and lines beside the axes.
std::string label_of(const Frame& frame, const OfferRow& row, std::size_t label) {
    return fmt::format("<text x='{:.1f}' y='{:.1f}' font-size='10'>{}</text>\n",
                       frame.x(row.offer.distribution.hours.mean) + least_radius + 1,
                       frame.y(row.offer.distribution.usd->mean) - least_radius - 1, label);
}

std::string list_of_front(const Question& question, const Offers& offers) {
    constexpr double line = 17;
    constexpr std::size_t most = 28;  // lines that there is room for
    std::string text;
    std::size_t label = 0;
    for (const OfferRow& row : offers.rows) {
        if (!row.is_on_front || ++label > most) continue;
        text +=
            fmt::format("<text x='{:.1f}' y='{:.1f}' font-size='11'>({}) {}: {:.4g} h, {:.4g} USD</text>\n",
                        width - right + 20, top + line * double(label), label, name_of(question, offers, row),
                        row.offer.distribution.hours.mean, row.offer.distribution.usd->mean);
    }
    return text;
}

std::string legend_of(const OfferRequest& request) {
    std::string text;
    double x = left;
    constexpr double entry = 150;
    for (const jobs::Purchase purchase : request.purchases) {
        text +=
            fmt::format("<circle cx='{:.1f}' cy='34' r='5' fill='{}'/><text x='{:.1f}' y='38'>{}</text>\n", x,
                        colour_of(purchase), x + 10, jobs::name_of(purchase));
        x += entry;
    }
    return text;
}

}  // namespace

std::string picture_of(const Question& question, const OfferRequest& request, const Offers& offers) {
    double hours = 0, usd = 0, risk = 0;
    for (const OfferRow& row : offers.rows) {
        hours = std::max(hours, row.offer.distribution.hours.mean);
        usd = std::max(usd, row.offer.distribution.usd->mean);
        risk = std::max(risk, jobs::risk_of(row.offer));
    }
    const Frame frame{axis_to(hours), axis_to(usd)};
    std::string text = fmt::format(
        "<svg xmlns='http://www.w3.org/2000/svg' width='{0:g}' height='{1:g}' viewBox='0 0 {0:g} {1:g}' "
        "font-family='sans-serif' font-size='12'>\n<style>.grid{{stroke:#ddd}} "
        ".front{{fill:none;stroke:#333;stroke-dasharray:4 3}}</style>\n<rect width='100%' height='100%' "
        "fill='white'/>\n<text x='{2:g}' y='18' font-size='14'>{3}: cost, time and risk of its training "
        "(larger: "
        "more risk; dashed: the front)</text>\n",
        width, height, left, question.graph.name);
    text += legend_of(request) + axes_of(frame) + front_line(frame, offers) + list_of_front(question, offers);
    std::size_t label = 0;
    for (const OfferRow& row : offers.rows) {
        const jobs::JobDistribution& distribution = row.offer.distribution;
        const double share = risk > 0 ? jobs::risk_of(row.offer) / risk : 0;
        text += fmt::format(
            "<circle cx='{:.1f}' cy='{:.1f}' r='{:.1f}' fill='{}' fill-opacity='{}' stroke='{}'><title>{}: "
            "{:.1f} h, "
            "{:.0f} USD, risk {:.1f} %</title></circle>\n",
            frame.x(distribution.hours.mean), frame.y(distribution.usd->mean),
            least_radius + (most_radius - least_radius) * share, colour_of(row.offer.purchase),
            row.meets ? 0.8 : 0.15, colour_of(row.offer.purchase), name_of(question, offers, row),
            distribution.hours.mean, distribution.usd->mean, 100 * jobs::risk_of(row.offer));
        if (row.is_on_front) text += label_of(frame, row, ++label);
    }
    return text + "</svg>\n";
}

}  // namespace api
