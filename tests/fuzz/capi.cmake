# The fuzz target of the C interface: ten seconds of libFuzzer in builds by Clang, a replay of the
# corpus in others. What checks descriptions is compiled again, so that it is instrumented.
file(GLOB capi_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/capi/*.cc")
foreach(name layout validate group_setup parameter_layout memory optimizer optimizer_impl optimizer_file)
  list(APPEND capi_sources "${PROJECT_SOURCE_DIR}/src/optimizer/${name}.cc")
endforeach()
set(capi_corpus "${PROJECT_SOURCE_DIR}/tests/fuzz/corpus_capi")
add_executable(capi_fuzz "${PROJECT_SOURCE_DIR}/tests/fuzz/capi_fuzz.cc" ${capi_sources})
flashoptim_target(capi_fuzz)
target_link_libraries(capi_fuzz PRIVATE flashoptim flashoptim_core)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang" AND NOT FLASHOPTIM_SANITIZE MATCHES "thread")
  target_compile_options(capi_fuzz PRIVATE -fsanitize=fuzzer,address,undefined
                                           -fno-sanitize-recover=all)
  target_link_options(capi_fuzz PRIVATE -fsanitize=fuzzer,address,undefined)
  # New inputs go to the build folder; the corpus is only read.
  file(MAKE_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/found_capi")
  add_test(NAME capi_fuzz
           COMMAND capi_fuzz -max_total_time=10 -timeout=5 -rss_limit_mb=2048 -print_final_stats=1
                   "${CMAKE_CURRENT_BINARY_DIR}/found_capi" "${capi_corpus}")
else()
  target_sources(capi_fuzz PRIVATE "${PROJECT_SOURCE_DIR}/tests/fuzz/replay.cc")
  add_test(NAME capi_fuzz COMMAND capi_fuzz "${capi_corpus}")
endif()
set_tests_properties(capi_fuzz PROPERTIES LABELS fuzz TIMEOUT 120)
