# SPDX-License-Identifier: Apache-2.0
# find_package(anyop): the target anyop::anyop and the function anyop_add_operators.
#
#   cmake -Danyop_DIR=$(python -c "import anyop; print(anyop.cmake_dir())")

get_filename_component(_anyop_package "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT EXISTS "${_anyop_package}/lib/libanyop.so")
  set(anyop_FOUND FALSE)
  set(anyop_NOT_FOUND_MESSAGE
    "no libanyop.so in ${_anyop_package}/lib: the installation is not complete")
  return()
endif()

if(NOT TARGET anyop::anyop)
  add_library(anyop::anyop SHARED IMPORTED)
  set_target_properties(anyop::anyop PROPERTIES
    IMPORTED_LOCATION "${_anyop_package}/lib/libanyop.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_anyop_package}/include")
endif()

# anyop_add_operators runs the generator of the installed package with any Python of 3.10 or newer.
set(ANYOP_CODEGEN_ROOT "${_anyop_package}")
set(ANYOP_INCLUDE_DIR "${_anyop_package}/include")
if(NOT Python_EXECUTABLE)
  find_package(Python 3.10 QUIET COMPONENTS Interpreter)
endif()
include("${CMAKE_CURRENT_LIST_DIR}/AnyopOperators.cmake")
