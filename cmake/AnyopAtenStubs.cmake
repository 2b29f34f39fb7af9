# SPDX-License-Identifier: Apache-2.0
# The type stubs of anyop.aten: 8,600 lines, written for the torch that the build's Python has, and
# anew when that is another one. Without torch there are none.

function(anyop_add_aten_stubs out)
  anyop_ask_python(torch "import importlib.metadata as m; \
print(next((d.version for d in m.distributions(name='torch')), ''))")
  if(NOT torch)
    message(STATUS "anyop: no torch here, so no type stubs of anyop.aten")
    return()
  endif()
  file(MAKE_DIRECTORY "${out}")
  file(CONFIGURE OUTPUT "${out}/torch.txt" CONTENT "${torch}\n")
  file(GLOB writers CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/codegen/aten/*.py"
    "${CMAKE_CURRENT_SOURCE_DIR}/codegen/schema/*.py")
  # Without device packages, which import the anyop that is installed.
  add_custom_command(
    OUTPUT "${out}/__init__.pyi"
    COMMAND "${CMAKE_COMMAND}" -E env TORCH_DEVICE_BACKEND_AUTOLOAD=0
      "${Python_EXECUTABLE}" -m codegen.aten "${out}/__init__.pyi"
    DEPENDS ${writers} "${out}/torch.txt"
    WORKING_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}"
    COMMENT "Writing the type stubs of anyop.aten for torch ${torch}" VERBATIM)
  add_custom_target(anyop_aten_stubs ALL DEPENDS "${out}/__init__.pyi")
  install(FILES "${out}/__init__.pyi" DESTINATION anyop/aten)
endfunction()
