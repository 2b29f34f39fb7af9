# SPDX-License-Identifier: Apache-2.0
# What a wheel holds besides the Python files, which scikit-build-core puts there (pyproject.toml).

install(TARGETS anyop anyop_opencl anyop_cuda_like LIBRARY DESTINATION anyop/lib)
install(TARGETS _anyop LIBRARY DESTINATION anyop)
# Built on the user's machine, for the Paddle and torch that are there (python/anyop/native/library.py).
install(FILES bindings/paddle_glue/paddle_glue.cc bindings/paddle_glue/paddle_glue.h
  DESTINATION anyop/paddle_glue)
install(DIRECTORY bindings/torch_glue bindings/torch_device DESTINATION anyop
  FILES_MATCHING PATTERN "*.cc" PATTERN "*.h" PATTERN "*_test.cc" EXCLUDE)
# The generator too: anyop_add_operators looks for it beside this configuration.
install(DIRECTORY codegen DESTINATION anyop FILES_MATCHING PATTERN "*.py"
  PATTERN "*_test.py" EXCLUDE PATTERN "conftest.py" EXCLUDE PATTERN "sample_operators.py" EXCLUDE
  PATTERN "__pycache__" EXCLUDE)
install(DIRECTORY include/anyop "${generated}/anyop" DESTINATION anyop/include
  FILES_MATCHING PATTERN "*.h")
install(FILES
  cmake/installed/anyopConfig.cmake
  cmake/AnyopOperators.cmake
  "${ANYOP_PACKAGE}/lib/cmake/anyop/anyopConfigVersion.cmake"
  DESTINATION anyop/lib/cmake/anyop)
