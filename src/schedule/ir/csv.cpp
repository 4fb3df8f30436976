#include "pipewright/schedule/csv.h"

#include <algorithm>
#include <istream>
#include <ostream>
#include <sstream>
#include <streambuf>

#include "pipewright/base/error.h"

namespace pipewright {
namespace {

/// Longer than any action can be, with room for spaces; keeps a damaged file from filling memory.
constexpr std::size_t kMaxCellText = 256;

/// Reads cell by cell from a stream, so that a bad file costs no more than its first bad cell.
class CsvReader {
 public:
  explicit CsvReader(std::streambuf& in) : in_(in) {}

  Schedule read() {
    Schedule schedule;
    while (in_.sgetc() != kEnd) {
      column_ = 0;
      if (schedule.rank_count() == kMaxRanks) {
        fail("more than " + std::to_string(kMaxRanks) + " rows");
      }
      schedule.ranks.emplace_back();
      read_row(schedule.ranks.back());
      schedule.ranks.back().shrink_to_fit();
      ++row_;
    }
    if (schedule.ranks.empty()) throw ParseError("the schedule is empty: expected one row a rank");
    infer_placement(schedule);
    return schedule;
  }

 private:
  static constexpr int kEnd = std::char_traits<char>::eof();

  /// A row with no text at all has no cells; any other has one more cell than it has commas.
  void read_row(std::vector<Action>& actions) {
    if (take_line_end()) return;
    while (true) {
      read_cell();
      if (++cells_ > kMaxCells) fail("more than " + std::to_string(kMaxCells) + " cells");
      try {
        parse_cell(cell_, actions);
      } catch (const ParseError& error) {
        fail(error.what());
      }
      ++column_;
      if (take_line_end() || in_.sbumpc() == kEnd) return;
    }
  }

  /// Reads up to the comma, line end or end of file that ends the cell.
  void read_cell() {
    cell_.clear();
    const bool is_quoted = in_.sgetc() == '"';
    if (is_quoted) in_.sbumpc();
    for (int next = in_.sgetc(); next != kEnd; next = in_.snextc()) {
      if (is_quoted && next == '"') {
        in_.sbumpc();
        check_after_quote();
        return;
      }
      if (!is_quoted && (next == ',' || next == '\n' || next == '\r')) return;
      if (cell_.size() == kMaxCellText) fail("the cell is longer than an action can be: " + cell_);
      cell_ += static_cast<char>(next);
    }
    if (is_quoted) fail("the quote is never closed: \"" + cell_);
  }

  void check_after_quote() {
    const int next = in_.sgetc();
    if (next != ',' && next != '\n' && next != '\r' && next != kEnd) {
      fail("text after the closing quote of \"" + cell_ + "\"");
    }
  }

  bool take_line_end() {
    const int next = in_.sgetc();
    if (next != '\n' && next != '\r') return false;
    if (next == '\r' && in_.snextc() != '\n') return true;
    in_.sbumpc();
    return true;
  }

  [[noreturn]] void fail(const std::string& message) const {
    throw ParseError("row " + std::to_string(row_ + 1) + " (rank " + std::to_string(row_) + "), column " +
                     std::to_string(column_ + 1) + ": " + message);
  }

  std::streambuf& in_;
  std::string cell_;
  std::int64_t row_ = 0;
  std::int64_t column_ = 0;
  std::int64_t cells_ = 0;
};

/// Views a string as a stream without copying it.
class TextBuffer : public std::streambuf {
 public:
  explicit TextBuffer(std::string_view text) {
    // A get area is never written to; std::streambuf only lacks the const.
    char* begin = const_cast<char*>(text.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
    setg(begin, begin, begin + text.size());
  }
};

}  // namespace

Schedule parse_csv(std::istream& in) { return CsvReader(*in.rdbuf()).read(); }

Schedule parse_csv(std::string_view text) {
  TextBuffer buffer(text);
  return CsvReader(buffer).read();
}

void write_csv(const Schedule& schedule, std::ostream& out) {
  std::string row;
  for (const auto& actions : schedule.ranks) {
    row.clear();
    for (std::size_t at = 0; at < actions.size();) {
      const std::size_t size = cell_size(actions, at);
      if (at > 0) row += ',';
      append_cell_text({actions.data() + at, size}, row);
      at += size;
    }
    // An empty line would read as a row without cells.
    if (row.empty() && !actions.empty()) row = "\"\"";
    row += '\n';
    out << row;
  }
}

std::string to_csv(const Schedule& schedule) {
  std::ostringstream out;
  write_csv(schedule, out);
  return std::move(out).str();
}

}  // namespace pipewright
