# Finds protobuf and its compiler without requiring them (libonnx brings the library). Sets HAS_PROTOBUF; then add_protobuf(TARGET FILE.proto)
# compiles a description of this tree into a target, whose sources include FILE.pb.h.
set(SMSIM_PROTOBUF AUTO CACHE STRING "read Chakra execution traces: AUTO (when protobuf and protoc are found), ON or OFF")
set_property(CACHE SMSIM_PROTOBUF PROPERTY STRINGS AUTO ON OFF)
set(HAS_PROTOBUF OFF)
if(SMSIM_PROTOBUF STREQUAL "OFF")
  return()
endif()
if(SMSIM_PROTOBUF STREQUAL "ON")
  find_package(Protobuf REQUIRED)
else()
  find_package(Protobuf QUIET)
endif()
if(TARGET protobuf::libprotobuf-lite AND Protobuf_PROTOC_EXECUTABLE)
  set(HAS_PROTOBUF ON)
elseif(SMSIM_PROTOBUF STREQUAL "ON")
  message(FATAL_ERROR "SMSIM_PROTOBUF=ON: protobuf's lite library or its compiler protoc was not found (Debian: libprotobuf-dev protobuf-compiler)")
endif()

function(add_protobuf target description)
  cmake_path(GET description PARENT_PATH folder)
  cmake_path(GET description STEM name)
  set(output "${CMAKE_BINARY_DIR}/protobuf")
  set(files "${output}/${folder}/${name}.pb.cc" "${output}/${folder}/${name}.pb.h")
  file(MAKE_DIRECTORY "${output}")
  add_custom_command(
    OUTPUT ${files}
    COMMAND "${Protobuf_PROTOC_EXECUTABLE}" "--proto_path=${CMAKE_SOURCE_DIR}" "--cpp_out=${output}" "${description}"
    WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}" DEPENDS "${CMAKE_SOURCE_DIR}/${description}" COMMENT "" VERBATIM)
  # A library of its own: protoc's code is not compiled with our warnings.
  add_library(${target}_${name} OBJECT ${files})
  target_include_directories(${target}_${name} SYSTEM PRIVATE "${output}")
  target_link_libraries(${target}_${name} PUBLIC protobuf::libprotobuf-lite)
  set_target_properties(${target}_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_${name}>)
  add_dependencies(${target} ${target}_${name})  # whose headers its files include
  target_include_directories(${target} SYSTEM PRIVATE "${output}")
  target_link_libraries(${target} PRIVATE protobuf::libprotobuf-lite)
endfunction()
