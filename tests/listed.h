// SPDX-License-Identifier: Apache-2.0
// What a listing of the catalog has, and what the directory has.
#pragma once

#include <dirent.h>

#include <string>
#include <vector>

#include "runtime/layout/catalog_reader.h"

namespace monarch {

// The names in a listing, with the type.
inline std::vector<std::string> listed(const CatalogReader& reader, const RelPath& path) {
  std::vector<std::string> names;
  const Listing* listing = reader.listing(path);
  Ref block = 0;
  for (uint32_t i = 0; listing && i < listing->count; ++i) {
    const ListedName* name = reader.listed_name(*listing, &block, i);
    const Ref entry = name ? name->entry : 0;
    const Entry* e = entry == kDot || entry == kDotDot ? nullptr : reader.entry(entry);
    names.push_back(e               ? std::string(e->name, e->name_len) + "/" + std::to_string(e->type.load())
                    : entry == kDot ? "."
                                    : "..");
  }
  return names;
}

// The same by readdir(3).
inline std::vector<std::string> read_directory(const std::string& path) {
  std::vector<std::string> names;
  DIR* dir = ::opendir(path.c_str());
  while (const dirent* e = dir ? ::readdir(dir) : nullptr) {
    const std::string name = e->d_name;
    names.push_back(name == "." || name == ".." ? name : name + "/" + std::to_string(e->d_type));
  }
  if (dir) ::closedir(dir);
  return names;
}

}  // namespace monarch
