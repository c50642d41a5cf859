// SPDX-License-Identifier: Apache-2.0
// Machines and datasets as INI files have them: monarchctl(1).
#pragma once

#include <string>

#include "runtime/base/result.h"
#include "simulate/model.h"

namespace monarch::simulate {

struct Settings {
  Machine machine;
  Dataset dataset;
};

// Adds what the text of an INI file says. An error names `file` and the line.
Status read_settings(const std::string& file, const std::string& text, Settings* settings);
// `key`: SECTION.KEY, of a section that is there.
Status change_setting(const std::string& key, const std::string& value, Settings* settings);
// Refuses what cannot be simulated, and fills in what may be left out.
Status complete(Settings* settings);

}  // namespace monarch::simulate
