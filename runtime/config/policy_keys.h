// SPDX-License-Identifier: Apache-2.0
// The sections of policy in monarch.conf(5): [policy], and those of partitions, accounts and QOS.
#pragma once

#include <string>

#include "runtime/base/result.h"
#include "runtime/config/config.h"

namespace monarch {

bool is_policy_section(const std::string& section);
// As PolicySection::title() writes it; what is none of policy as it is.
std::string canonical_section(const std::string& section);
// That section, if the file had it before; nullptr: it had not, or it is none of policy.
PolicySection* find_policy(Config* config, const std::string& section);
void add_policy(Config* config, const std::string& section);

// Whether it may be given several times, which add up.
bool is_list_of_policy(const std::string& key);

// Whether the tiers that it names are there; to be told with policy.tiers_line.
Status check_policy(const Config& config, const PolicySection& policy);

}  // namespace monarch
