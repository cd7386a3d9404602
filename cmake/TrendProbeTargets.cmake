# Flags that every target of this project is built with.
add_library(trendprobe_flags INTERFACE)
target_compile_options(trendprobe_flags INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor
  # Designated initializers leave the rest at the defaults on purpose.
  -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC bug 105651: std::string operator+ warns about an overlap that can't happen.
  target_compile_options(trendprobe_flags INTERFACE -Wno-restrict)
endif()
if(TRENDPROBE_WERROR)
  target_compile_options(trendprobe_flags INTERFACE -Werror)
endif()
target_include_directories(trendprobe_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_definitions(trendprobe_flags INTERFACE TRENDPROBE_VERSION="${PROJECT_VERSION}")
if(TRENDPROBE_SANITIZE)
  target_compile_options(trendprobe_flags INTERFACE -fsanitize=${TRENDPROBE_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(trendprobe_flags INTERFACE -fsanitize=${TRENDPROBE_SANITIZE})
endif()

# trendprobe_library(NAME sources...): a static library of ours.
function(trendprobe_library name)
  add_library(${name} STATIC ${ARGN})
  target_link_libraries(${name} PUBLIC trendprobe_flags)
endfunction()
