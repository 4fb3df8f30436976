# Installs the build, builds two programs against it (the consumer's own and, where TORCH says
# that there is a runtime, the README's) and runs them; the README's must print what the README says.
function(run output)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE printed ERROR_VARIABLE errors)
  if(result)
    message(FATAL_ERROR "${ARGN} failed:\n${printed}${errors}")
  endif()
  set(${output} "${printed}" PARENT_SCOPE)
endfunction()

# The text of the first fenced block of a language.
function(first_block language text output)
  string(FIND "${text}" "```${language}\n" start)
  string(LENGTH "```${language}\n" fence)
  math(EXPR start "${start} + ${fence}")
  string(SUBSTRING "${text}" ${start} -1 rest)
  string(FIND "${rest}" "```" end)
  string(SUBSTRING "${rest}" 0 ${end} block)
  set(${output} "${block}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK})
file(READ ${README} readme)
first_block(cpp "${readme}" program)
first_block(text "${readme}" expected)
file(WRITE ${WORK}/readme.cpp "${program}")
if(TORCH)
  set(readme_program -DREADME_PROGRAM=${WORK}/readme.cpp)
endif()

run(ignored ${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
run(ignored ${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/build -G ${GENERATOR}
    -DCMAKE_BUILD_TYPE=Release -DPipewright_ROOT=${WORK}/prefix -DTorch_ROOT=${TORCH}
    ${readme_program})
run(ignored ${CMAKE_COMMAND} --build ${WORK}/build)
run(ignored ${WORK}/build/consumer)
run(ignored ${WORK}/prefix/bin/pipewright --version)
if(NOT TORCH)
  return()
endif()
run(printed ${WORK}/build/readme)
if(NOT printed STREQUAL expected)
  message(FATAL_ERROR "The README's program prints:\n${printed}but the README says:\n${expected}")
endif()
