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

# Python's module with one file more, which brings a framework.
add_library(_anyop_made_up MODULE tests/made_up/made_up.cc $<TARGET_OBJECTS:_anyop>)
target_include_directories(_anyop_made_up PRIVATE bindings/python)
target_include_directories(_anyop_made_up SYSTEM PRIVATE
  ${Python_INCLUDE_DIRS} "${ANYOP_TVM_FFI_INCLUDE}")
target_compile_definitions(_anyop_made_up PRIVATE Py_LIMITED_API=0x030a0000)
target_link_libraries(_anyop_made_up PRIVATE anyop)
set_target_properties(_anyop_made_up PROPERTIES
  PREFIX "" OUTPUT_NAME _anyop SUFFIX ".abi3.so" BUILD_RPATH_USE_ORIGIN ON BUILD_RPATH "$ORIGIN/lib"
  LIBRARY_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/tests/made_up")
add_test(NAME made_up_framework COMMAND "${Python_EXECUTABLE}"
  "${CMAKE_CURRENT_SOURCE_DIR}/tests/made_up/made_up_program.py"
  $<TARGET_FILE:_anyop_made_up> "${ANYOP_PACKAGE}")
set_tests_properties(made_up_framework PROPERTIES TIMEOUT 300)
