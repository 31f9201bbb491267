# Finds Python's headers and nanobind without requiring them. Sets HAS_PYTHON_EXTENSION; python/ is then built with the
# rest: the extension links the libraries that the tools are made of, so nothing is compiled twice.
set(SMSIM_PYTHON AUTO CACHE STRING "build the Python package's extension: AUTO (when nanobind is found), ON or OFF")
set_property(CACHE SMSIM_PYTHON PROPERTY STRINGS AUTO ON OFF)
set(HAS_PYTHON_EXTENSION OFF)
if(SMSIM_PYTHON STREQUAL "OFF" OR SMSIM_SANITIZE OR SMSIM_FUZZ)
  return()
endif()

# `./run` makes this environment with nanobind and pytest in it; scikit-build-core brings its own by -DPython_EXECUTABLE.
set(SMSIM_PYTHON_ENVIRONMENT "${CMAKE_BINARY_DIR}/python-environment" CACHE PATH "virtual environment with nanobind")
if(NOT Python_EXECUTABLE AND EXISTS "${SMSIM_PYTHON_ENVIRONMENT}/bin/python")
  set(Python_EXECUTABLE "${SMSIM_PYTHON_ENVIRONMENT}/bin/python")
endif()
find_package(Python 3.9 QUIET COMPONENTS Interpreter Development.Module)
if(Python_FOUND AND NOT nanobind_ROOT)
  execute_process(COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir OUTPUT_VARIABLE nanobind_ROOT
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(Python_FOUND)
  find_package(nanobind CONFIG QUIET)
endif()
if(Python_FOUND AND nanobind_FOUND)
  set(HAS_PYTHON_EXTENSION ON)
elseif(SMSIM_PYTHON STREQUAL "ON")
  message(FATAL_ERROR "SMSIM_PYTHON=ON needs Python 3.9's headers and nanobind 2 (python3 -m pip install nanobind)")
endif()
message(STATUS "Python extension: ${HAS_PYTHON_EXTENSION}")

# A shared object needs code that may lie anywhere. Hidden symbols keep it as fast as a program's own: calls within the
# libraries stay direct and may be inlined.
if(HAS_PYTHON_EXTENSION)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fPIC> $<$<COMPILE_LANGUAGE:CXX>:-fvisibility=hidden>
                      $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-fPIC>)
endif()
