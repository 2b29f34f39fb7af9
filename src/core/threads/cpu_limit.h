// SPDX-License-Identifier: Apache-2.0
// How many CPUs this process may use: its affinity, bounded by the quota of its cgroup.
#pragma once

namespace anyop {

constexpr int kMaxThreads = 1024;

// The smallest CPU quota, rounded up, of the cgroups named in a file such as /proc/self/cgroup and
// of all groups above them; mount is where cgroups are mounted. 0: no quota. Knows versions 1
// and 2.
int CgroupCpus(const char* cgroup_file, const char* mount);

// At least 1, at most kMaxThreads.
int UsableCpus();

// Reads a number of threads from text. False unless it is a whole number from 1 to kMaxThreads.
bool ParseThreads(const char* text, int* threads);

}  // namespace anyop
