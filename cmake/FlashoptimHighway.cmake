# Defines flashoptim::highway: the headers of Highway, which are all that is used of it. Its shared
# library is not linked, so nothing that is built here needs it.
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
  pkg_check_modules(flashoptim_hwy QUIET libhwy) # where it is, if not where headers usually are
endif()
find_path(FLASHOPTIM_HIGHWAY_INCLUDE hwy/highway.h HINTS ${flashoptim_hwy_INCLUDE_DIRS})
mark_as_advanced(FLASHOPTIM_HIGHWAY_INCLUDE)
set(highway_version 0)
if(FLASHOPTIM_HIGHWAY_INCLUDE)
  file(STRINGS "${FLASHOPTIM_HIGHWAY_INCLUDE}/hwy/highway.h" lines
       REGEX "^#define HWY_(MAJOR|MINOR|PATCH) ")
  string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
  list(JOIN numbers "." highway_version)
endif()
if(highway_version VERSION_LESS 1.0.3)
  message(FATAL_ERROR "Highway 1.0.3 or newer was not found (Debian: apt-get install libhwy-dev)")
endif()
add_library(flashoptim_highway INTERFACE IMPORTED)
add_library(flashoptim::highway ALIAS flashoptim_highway)
target_include_directories(flashoptim_highway INTERFACE "${FLASHOPTIM_HIGHWAY_INCLUDE}")
# Its assertions, which sanitizers switch on, would call into the library.
target_compile_definitions(flashoptim_highway INTERFACE HWY_IS_DEBUG_BUILD=0)
