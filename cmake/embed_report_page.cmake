# Files as texts of a source file. A compiler may refuse a literal over 64 KiB: long ones are made of pieces, which lie side by side.
function(piece_together path output)
  file(READ "${path}" text)
  string(LENGTH "${text}" length)
  set(at 0)
  set(pieces "")
  while(at LESS length)
    string(SUBSTRING "${text}" ${at} 15000 piece)
    string(APPEND pieces "R\"bundle(${piece})bundle\"\n")
    math(EXPR at "${at} + 15000")
  endwhile()
  set(${output} "${pieces}" PARENT_SCOPE)
endfunction()
piece_together("${SCRIPT}" script)
piece_together("${STYLE}" style)
piece_together("${LICENCES}" licences)
file(WRITE "${OUTPUT}" "// Made by CMake of web/.
#include \"api/report_page/bundle.h\"

namespace api {

std::string_view report_script() { return ${script}; }
std::string_view report_style() { return ${style}; }
std::string_view report_licences() { return ${licences}; }

}  // namespace api
")
