#include <exception>
#include <iostream>

#include "commands.h"
#include "pipewright/base/error.h"

namespace pipewright::cli {

int run_app(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kWrongUsage;
  } catch (const Judged&) {
    return kBadInput;
  } catch (const ArgumentError& error) {
    std::cerr << "pipewright: " << error.what() << '\n';
    return kWrongUsage;
  } catch (const std::exception& error) {
    std::cerr << "pipewright: " << error.what() << '\n';
    return kBadInput;
  }
  return 0;
}

}  // namespace pipewright::cli
