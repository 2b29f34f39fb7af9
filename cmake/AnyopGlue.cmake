# SPDX-License-Identifier: Apache-2.0
# ANYOP_PREBUILT_GLUE=ON: the glues and the device for the torch that the building Python has, put into
# the package, so that its users need no compiler (python/anyop/_build_once.py looks for them there).

option(ANYOP_PREBUILT_GLUE "build the glues and the device for the installed torch into the package"
  OFF)
if(NOT ANYOP_PREBUILT_GLUE)
  return()
endif()

anyop_ask_python(torch "import os, torch; print(torch.__version__, os.path.dirname(torch.__file__), \
int(torch.compiled_with_cxx11_abi()), 'USE_ROCM' if torch.version.hip else '', sep=';')")
list(GET torch 0 torch_version)
list(GET torch 1 torch_folder)
list(GET torch 2 torch_abi)
list(GET torch 3 torch_kind)
add_library(torch_glue MODULE bindings/torch_glue/torch_glue.cc)
add_library(torch_aten_glue MODULE bindings/torch_glue/torch_aten_glue.cc)
file(GLOB device_files CONFIGURE_DEPENDS bindings/torch_device/*.cc)
list(FILTER device_files EXCLUDE REGEX "_test\\.cc$")
add_library(torch_device MODULE ${device_files})
set_target_properties(torch_device PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 15)
string(REGEX REPLACE "^[0-9]+\\.([0-9]+).*" "\\1" torch_minor "${torch_version}")
target_compile_definitions(torch_device PRIVATE ANYOP_TORCH_MINOR=${torch_minor})
target_link_options(torch_device PRIVATE "-Wl,-soname,torch_device-${torch_version}.so")
target_link_libraries(torch_device PRIVATE anyop "${torch_folder}/lib/libtorch.so")
foreach(name IN ITEMS torch_glue torch_aten_glue torch_device)
  target_include_directories(${name} PRIVATE include)
  target_include_directories(${name} SYSTEM PRIVATE "${torch_folder}/include")
  target_compile_definitions(${name} PRIVATE
    ANYOP_TORCH_VERSION="${torch_version}" _GLIBCXX_USE_CXX11_ABI=${torch_abi} ${torch_kind})
  target_compile_options(${name} PRIVATE -fno-plt)
  target_link_options(${name} PRIVATE "-Wl,--exclude-libs,ALL")
  target_link_libraries(${name} PRIVATE
    "${torch_folder}/lib/libc10.so" "${torch_folder}/lib/libtorch_cpu.so")
  set_target_properties(${name} PROPERTIES
    CXX_STANDARD 20 PREFIX "" OUTPUT_NAME "${name}-${torch_version}" SKIP_BUILD_RPATH ON
    LIBRARY_OUTPUT_DIRECTORY "${ANYOP_PACKAGE}/lib")
  install(TARGETS ${name} LIBRARY DESTINATION anyop/lib)
endforeach()
message(STATUS "anyop: glues and device for torch ${torch_version} go into the package")
