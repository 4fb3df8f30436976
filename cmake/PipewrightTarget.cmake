# What every target of this project has in common.

function(pipewright_configure target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # GCC 12 warns of overlapping copies inside std::string's own operator+ (GCC bug 105651).
    target_compile_options(${target} PRIVATE -Wno-restrict)
  endif()
  if(PIPEWRIGHT_SANITIZE)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # GCC loses track of what is initialised in instrumented code.
      # And it says that ThreadSanitizer does not follow fences, such as those in libtorch's headers.
      target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized -Wno-tsan)
    endif()
    target_compile_options(${target} PRIVATE -fsanitize=${PIPEWRIGHT_SANITIZE}
                           -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${PIPEWRIGHT_SANITIZE})
  endif()
endfunction()

# Compiled in few files where PIPEWRIGHT_UNITY is on.
function(pipewright_compile_together target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${PIPEWRIGHT_UNITY} UNITY_BUILD_BATCH_SIZE 24)
endfunction()

# A target on libtorch.
function(pipewright_uses_torch target)
  pipewright_compile_together(${target})
  # Libtorch is built with it, and some classes in its headers have other members without.
  target_compile_definitions(${target} PRIVATE NDEBUG)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC 13 warns of a copy inside the std::vector<bool> of torch::autograd::Function::apply.
    target_compile_options(${target} PRIVATE -Wno-array-bounds -Wno-stringop-overflow)
  endif()
endfunction()

# A library of one layer: static, exported as Pipewright::<layer>.
function(pipewright_add_layer layer)
  add_library(pipewright_${layer} STATIC ${ARGN})
  add_library(Pipewright::${layer} ALIAS pipewright_${layer})
  pipewright_configure(pipewright_${layer})
  pipewright_compile_together(pipewright_${layer})
  set_target_properties(pipewright_${layer} PROPERTIES EXPORT_NAME ${layer})
  target_include_directories(
    pipewright_${layer}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
           $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE ${PROJECT_SOURCE_DIR}/src)
  install(TARGETS pipewright_${layer} EXPORT PipewrightTargets)
endfunction()
