// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/mountinfo.h"

#include <gtest/gtest.h>

namespace monarch {
namespace {

TEST(MountLine, HasNamesAsTheyAre) {
  MountLine m;
  ASSERT_TRUE(
      parse_mount_line("65 44 0:40 /a\\040b /c\\011d\\134040\\012\\377\\08 rw,nosuid shared:1 master:2 - "
                       "fuse.x\\040y s\\040 ro,user_id=7",
                       &m));
  EXPECT_EQ(m.id, 65);
  EXPECT_EQ(m.parent, 44);
  EXPECT_EQ(m.device, "0:40");
  EXPECT_EQ(m.root, "/a b");
  EXPECT_EQ(m.point, "/c\td\\040\n\xff\\08");
  EXPECT_EQ(m.options, "rw,nosuid");
  EXPECT_EQ(m.type, "fuse.x y");
  EXPECT_EQ(m.source, "s ");
  EXPECT_EQ(m.super_options, "ro,user_id=7");
}

// As kernels before Linux 5.1 let a user mount a FUSE file system.
TEST(MountLine, ASourceMayBeEmpty) {
  MountLine m;
  ASSERT_TRUE(parse_mount_line("65 44 0:40 / /m rw - fuse  rw,user_id=7", &m));
  EXPECT_EQ(m.source, "");
  EXPECT_EQ(m.super_options, "rw,user_id=7");
}

TEST(MountLine, WhatIsNoneIsRefused) {
  MountLine m;
  for (const char* line :
       {"", "65", "65 44 0:40 / /m rw", "65 44 0:40 / /m rw -", "65 44 0:40 / /m rw - fuse x",
        "65 44 0:40 / - rw fuse x rw", "65 44 0:40 / /m rw fuse x rw"})
    EXPECT_FALSE(parse_mount_line(line, &m)) << line;
}

TEST(MountLine, AnOptionIsAWholeOne) {
  EXPECT_TRUE(has_mount_option("rw,user_id=7", "user_id=7"));
  EXPECT_TRUE(has_mount_option("user_id=7,rw", "user_id=7"));
  EXPECT_FALSE(has_mount_option("rw,user_id=70", "user_id=7"));
  EXPECT_FALSE(has_mount_option("rw,xuser_id=7", "user_id=7"));
  EXPECT_FALSE(has_mount_option("", "user_id=7"));
}

}  // namespace
}  // namespace monarch
