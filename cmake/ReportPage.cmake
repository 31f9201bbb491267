# The script and style of report pages (--html), bundled by esbuild of web/ and D3's modules (Debian and Ubuntu: esbuild, node-d3), as a
# source file. Sets HAS_REPORT_PAGE; without the two, api/report_page/bundle_absent.cpp says what to install.
set(SMSIM_REPORT_PAGE AUTO CACHE STRING "report pages (--html): AUTO (when esbuild and node-d3 are found), ON or OFF")
set_property(CACHE SMSIM_REPORT_PAGE PROPERTY STRINGS AUTO ON OFF)
set(HAS_REPORT_PAGE FALSE)
if(NOT SMSIM_REPORT_PAGE STREQUAL "OFF")
  find_program(ESBUILD esbuild)
  find_path(NODE_MODULES d3-selection/package.json PATHS /usr/share/nodejs DOC "folder with D3's modules")
  if(ESBUILD AND NODE_MODULES)
    set(HAS_REPORT_PAGE TRUE)
  elseif(SMSIM_REPORT_PAGE STREQUAL "ON")
    message(FATAL_ERROR "SMSIM_REPORT_PAGE=ON, but esbuild or D3's modules were not found: install esbuild and node-d3")
  endif()
endif()

# Adds the generated source to a target.
function(add_report_page target)
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/web/components/*.js" "${CMAKE_SOURCE_DIR}/web/components/*.css"
       "${CMAKE_SOURCE_DIR}/web/report/*")
  set(bundle "${CMAKE_BINARY_DIR}/report_page")
  set(esbuild "${CMAKE_COMMAND}" -E env NODE_PATH=${NODE_MODULES} "${ESBUILD}" --bundle --minify --log-level=warning)
  add_custom_command(
    OUTPUT "${bundle}/bundle.cpp"
    COMMAND ${esbuild} --format=iife --target=es2020 --outfile=${bundle}/report.js "${CMAKE_SOURCE_DIR}/web/report/report.js"
    COMMAND ${esbuild} --outfile=${bundle}/report.css "${CMAKE_SOURCE_DIR}/web/report/report.css"
    COMMAND "${CMAKE_COMMAND}" -DSCRIPT=${bundle}/report.js -DSTYLE=${bundle}/report.css
            -DLICENCES=${CMAKE_SOURCE_DIR}/web/report/licences.txt -DOUTPUT=${bundle}/bundle.cpp
            -P "${CMAKE_SOURCE_DIR}/cmake/embed_report_page.cmake"
    DEPENDS ${sources} "${CMAKE_SOURCE_DIR}/cmake/embed_report_page.cmake"
    COMMENT "Bundling the report page" VERBATIM)
  target_sources(${target} PRIVATE "${bundle}/bundle.cpp")
endfunction()
