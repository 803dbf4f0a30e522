# The installed library as a stranger uses it. Consumers know nothing of sanitizers.
if(FLASHOPTIM_INSTALL AND NOT FLASHOPTIM_SANITIZE)
  add_test(NAME consumer COMMAND "${PROJECT_SOURCE_DIR}/tests/consumer/run.sh"
                                 "${PROJECT_BINARY_DIR}" "${CMAKE_COMMAND}")
  set_tests_properties(consumer PROPERTIES LABELS install TIMEOUT 600)
endif()

# The C++ example itself, in every build.
add_executable(example_quadratic "${PROJECT_SOURCE_DIR}/examples/cpp/quadratic.cc")
flashoptim_target(example_quadratic)
target_link_libraries(example_quadratic PRIVATE flashoptim)
add_test(NAME example_quadratic COMMAND example_quadratic)
set_tests_properties(example_quadratic PROPERTIES LABELS unit TIMEOUT 120)

# The one that trains on real data is run where there are data (tests/libtorch).
add_executable(example_digits "${PROJECT_SOURCE_DIR}/examples/cpp/digits.cc")
flashoptim_target(example_digits)
target_link_libraries(example_digits PRIVATE flashoptim)
