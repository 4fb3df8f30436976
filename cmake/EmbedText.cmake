# Writes a C++ header that holds the text of INPUT as `inline constexpr std::string_view NAME`.
# A compiler limits the length of one literal, so the text is cut into several.
file(READ ${INPUT} text)
string(LENGTH "${text}" length)
set(chunk_size 8000)
set(body "")
set(start 0)
while(start LESS length)
  string(SUBSTRING "${text}" ${start} ${chunk_size} chunk)
  string(APPEND body "R\"__PW__(${chunk})__PW__\"\n")
  math(EXPR start "${start} + ${chunk_size}")
endwhile()
file(WRITE ${OUTPUT} "#pragma once\n#include <string_view>\nnamespace pipewright {\n"
     "inline constexpr std::string_view ${NAME} =\n${body};\n}  // namespace pipewright\n")
