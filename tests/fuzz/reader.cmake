# The fuzz target of the file reader: ten seconds of libFuzzer in builds by Clang, a replay of the
# corpus in others. Sources of the reader are compiled again, so that they are instrumented.
find_package(nlohmann_json 3.11 REQUIRED)
file(GLOB reader_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/checkpoint/*.cc"
     "${PROJECT_SOURCE_DIR}/src/optimizer/state_*.cc")
list(FILTER reader_sources EXCLUDE REGEX "/zstd\\.cc$")
set(reader_corpus "${PROJECT_SOURCE_DIR}/tests/fuzz/corpus_reader")
add_executable(reader_fuzz "${PROJECT_SOURCE_DIR}/tests/fuzz/reader_fuzz.cc" ${reader_sources}
                           "${PROJECT_SOURCE_DIR}/src/checkpoint/no_zstd.cpp")
flashoptim_target(reader_fuzz)
target_link_libraries(reader_fuzz PRIVATE flashoptim flashoptim_core nlohmann_json::nlohmann_json
                                          flashoptim::zlib)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang" AND NOT FLASHOPTIM_SANITIZE MATCHES "thread")
  target_compile_options(reader_fuzz PRIVATE -fsanitize=fuzzer,address,undefined
                                             -fno-sanitize-recover=all)
  target_link_options(reader_fuzz PRIVATE -fsanitize=fuzzer,address,undefined)
  # New inputs go to the build folder; the corpus is only read.
  file(MAKE_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/found_reader")
  add_test(NAME reader_fuzz
           COMMAND reader_fuzz -max_total_time=10 -timeout=5 -rss_limit_mb=2048 -print_final_stats=1
                   "${CMAKE_CURRENT_BINARY_DIR}/found_reader" "${reader_corpus}")
else()
  target_sources(reader_fuzz PRIVATE "${PROJECT_SOURCE_DIR}/tests/fuzz/replay.cc")
  add_test(NAME reader_fuzz COMMAND reader_fuzz "${reader_corpus}")
endif()
set_tests_properties(reader_fuzz PROPERTIES LABELS fuzz TIMEOUT 120)
