// SPDX-License-Identifier: Apache-2.0
// monarchctl version: of Monarch, and of what its parts share, by which an upgrade in mid-job is judged.
#include <cstdio>
#include <memory>

#include "admin/commands.h"
#include "admin/output.h"
#include "build_config.h"
#include "runtime/layout/board_layout.h"
#include "runtime/layout/catalog_layout.h"
#include "runtime/peer/messages.h"

namespace monarch::admin {

void add_version(CommandLine app, int* status) {
  auto json = std::make_shared<bool>();
  app.add_flag("--json", *json,
               "print it, and the versions of catalog, board and the nodes' messages, as JSON");
  app.callback([json, status] {
    if (*json)
      print_json({{"version", PACKAGE_VERSION},
                  {"catalog", kCatalogVersion},
                  {"board", kBoardVersion},
                  {"peer_messages", kPeerVersion}});
    else
      std::puts("monarchctl " PACKAGE_VERSION);
    *status = 0;
  });
}

}  // namespace monarch::admin
