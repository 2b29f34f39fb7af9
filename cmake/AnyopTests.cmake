# SPDX-License-Identifier: Apache-2.0
# One program for each *_test.cc, made of the library's own objects: tests see what it hides.

file(GLOB_RECURSE kernel_tests CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/ops/*_test.cc")
foreach(source IN LISTS test_sources kernel_tests)
  get_filename_component(name "${source}" NAME_WE)
  add_executable(${name} "${source}"
    $<TARGET_OBJECTS:anyop_core> ${anyop_kernels_OBJECTS})
  target_include_directories(${name} PRIVATE
    "${CMAKE_CURRENT_SOURCE_DIR}" include src/core src/device bindings/tvm_ffi bindings/aten
    "${generated}")
  target_link_libraries(${name} PRIVATE
    ${ANYOP_CUDA_LIBRARIES} Threads::Threads ${CMAKE_DL_LIBS})
  set_target_properties(${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/tests")
  if(source IN_LIST kernel_tests)
    target_compile_options(${name} PRIVATE ${ANYOP_KERNEL_FLAGS})
    if(ANYOP_CPU_ISA)
      target_compile_definitions(${name} PRIVATE ANYOP_CPU_ISA=${ANYOP_CPU_ISA})
    endif()
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 300)
endforeach()
