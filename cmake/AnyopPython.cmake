# SPDX-License-Identifier: Apache-2.0
# The Python that runs the generator and whose headers the module is built with; where the headers of
# tvm-ffi and of nlohmann's JSON are; and the package as it looks when installed, made of links in the build folder:
# PYTHONPATH=<build>/python imports it.

find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)

# Sets <result> to what a Python expression prints.
function(anyop_ask_python result program)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c "${program}"
    OUTPUT_VARIABLE answer OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(${result} "${answer}" PARENT_SCOPE)
endfunction()

anyop_ask_python(free_threaded
  "import sysconfig; print(int(bool(sysconfig.get_config_var('Py_GIL_DISABLED'))))")
if(free_threaded)
  message(FATAL_ERROR "${Python_EXECUTABLE} is a free-threaded Python: anyop has no build for it "
    "yet; use a Python with the GIL")
endif()

# Found without importing tvm_ffi, which would import torch.
anyop_ask_python(ANYOP_TVM_FFI_INCLUDE "import importlib.util as u; s = u.find_spec('tvm_ffi'); \
print(s.submodule_search_locations[0] + '/include' if s and s.origin else '')")
if(NOT EXISTS "${ANYOP_TVM_FFI_INCLUDE}/tvm/ffi/c_api.h")
  message(FATAL_ERROR "${Python_EXECUTABLE} has no package apache-tvm-ffi, whose C header the "
    "build needs: ${Python_EXECUTABLE} -m pip install apache-tvm-ffi")
endif()

# Of Python's package, or of the system's (Debian: nlohmann-json3-dev).
anyop_ask_python(ANYOP_JSON_INCLUDE "import importlib.util as u; s = u.find_spec('nlohmann_json'); \
print(s.submodule_search_locations[0] + '/include' if s and s.origin else '')")
if(NOT EXISTS "${ANYOP_JSON_INCLUDE}/nlohmann/json.hpp")
  find_path(ANYOP_SYSTEM_JSON nlohmann/json.hpp)
  set(ANYOP_JSON_INCLUDE "${ANYOP_SYSTEM_JSON}")
endif()
if(NOT ANYOP_JSON_INCLUDE)
  message(FATAL_ERROR "there is no nlohmann/json.hpp, which the build needs: "
    "${Python_EXECUTABLE} -m pip install nlohmann-json")
endif()

set(ANYOP_PACKAGE "${CMAKE_CURRENT_BINARY_DIR}/python/anyop")

# Links every entry of folder into the package's folder of that name.
function(anyop_link_entries folder into)
  file(GLOB entries CONFIGURE_DEPENDS "${folder}/*")
  file(MAKE_DIRECTORY "${into}")
  file(GLOB before "${into}/*")
  foreach(link IN LISTS before)
    if(IS_SYMLINK "${link}" AND NOT EXISTS "${link}") # its file was moved
      file(REMOVE "${link}")
    endif()
  endforeach()
  foreach(entry IN LISTS entries)
    get_filename_component(name "${entry}" NAME)
    if(NOT name STREQUAL "__pycache__")
      file(CREATE_LINK "${entry}" "${into}/${name}" SYMBOLIC)
    endif()
  endforeach()
endfunction()

function(anyop_link_package)
  set(source "${CMAKE_CURRENT_SOURCE_DIR}")
  set(config "${ANYOP_PACKAGE}/lib/cmake/anyop")
  anyop_link_entries("${source}/python/anyop" "${ANYOP_PACKAGE}")
  anyop_link_entries("${source}/bindings/paddle_glue" "${ANYOP_PACKAGE}/paddle_glue")
  anyop_link_entries("${source}/bindings/torch_glue" "${ANYOP_PACKAGE}/torch_glue")
  anyop_link_entries("${source}/bindings/torch_device" "${ANYOP_PACKAGE}/torch_device")
  anyop_link_entries("${source}/codegen" "${ANYOP_PACKAGE}/codegen")
  anyop_link_entries("${source}/include/anyop" "${ANYOP_PACKAGE}/include/anyop")
  anyop_link_entries("${CMAKE_CURRENT_BINARY_DIR}/generated/anyop" "${ANYOP_PACKAGE}/include/anyop")
  anyop_link_entries("${source}/cmake/installed" "${config}")
  file(CREATE_LINK
    "${source}/cmake/AnyopOperators.cmake" "${config}/AnyopOperators.cmake" SYMBOLIC)
  # OpenBLAS lies beside the package, as it does where pip installed both. PYTHONPATH may name this
  # very build, where it is a link already.
  anyop_ask_python(openblas "import importlib.util as u, os; s = u.find_spec('scipy_openblas64'); \
print(os.path.realpath(s.submodule_search_locations[0]) if s and s.origin else '')")
  if(openblas)
    file(CREATE_LINK "${openblas}" "${ANYOP_PACKAGE}/../scipy_openblas64" SYMBOLIC)
  endif()
  # So does oneDNN, where pip put it: in Paddle's libs, or in the environment's lib.
  anyop_ask_python(onednn "import glob, sys, sysconfig as s; \
print(next((p for d in (s.get_path('purelib') + '/paddle/libs', sys.prefix + '/lib') \
for p in glob.glob(d + '/libdnnl.so.3')), ''))")
  if(onednn)
    file(CREATE_LINK "${onednn}" "${ANYOP_PACKAGE}/../libdnnl.so.3" SYMBOLIC)
  endif()
  configure_file(cmake/anyopConfigVersion.cmake.in "${config}/anyopConfigVersion.cmake" @ONLY)
endfunction()
