#pragma once

#include <iosfwd>
#include <string>
#include <string_view>

#include "pipewright/schedule/schedule.h"

namespace pipewright {

/// Reads a schedule: one row a rank, one cell an action, an empty cell is a
/// bubble. Both formats of torch.distributed.pipelining (compute_only and
/// compute_comms); LF or CRLF; cells may be quoted. Placement and microbatch
/// count are inferred. Throws ParseError that names row, column and text, and
/// stops at the limits of base/ids.h without reading further.
Schedule parse_csv(std::istream& in);
Schedule parse_csv(std::string_view text);

/// Writes the same format, rows ended by LF.
void write_csv(const Schedule& schedule, std::ostream& out);
std::string to_csv(const Schedule& schedule);

}  // namespace pipewright
