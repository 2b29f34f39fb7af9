// SPDX-License-Identifier: Apache-2.0
// How many CPUs this process may use: its affinity, bounded by the quota of its cgroup.
#include "threads/cpu_limit.h"

#include <sched.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace anyop {
namespace {

constexpr int kPathBytes = 4096;

struct Path {
  char text[kPathBytes];
};

// Reads the first line of a file. False when there is none.
bool ReadLine(const char* path, char* line, int bytes) {
  FILE* file = std::fopen(path, "re");
  if (!file) return false;
  const bool good = std::fgets(line, bytes, file) != nullptr;
  std::fclose(file);
  return good;
}

int RoundUp(long long quota, long long period) {
  if (quota <= 0 || period <= 0) return 0;
  return static_cast<int>(std::min<long long>(quota / period + (quota % period != 0), INT_MAX));
}

// The quota set at one folder of the hierarchy, 0 when there is none.
int QuotaAt(const char* folder, bool version1) {
  Path path;
  char line[128];
  long long quota = 0, period = 0;
  if (!version1) {
    if (std::snprintf(path.text, kPathBytes, "%s/cpu.max", folder) >= kPathBytes) return 0;
    if (!ReadLine(path.text, line, sizeof line)) return 0;
    return std::sscanf(line, "%lld %lld", &quota, &period) == 2 ? RoundUp(quota, period)
                                                                : 0;  // "max 100000"
  }
  if (std::snprintf(path.text, kPathBytes, "%s/cpu.cfs_quota_us", folder) >= kPathBytes) return 0;
  if (!ReadLine(path.text, line, sizeof line) || std::sscanf(line, "%lld", &quota) != 1) return 0;
  if (std::snprintf(path.text, kPathBytes, "%s/cpu.cfs_period_us", folder) >= kPathBytes) return 0;
  if (!ReadLine(path.text, line, sizeof line) || std::sscanf(line, "%lld", &period) != 1) return 0;
  return RoundUp(quota, period);
}

int Tighter(int a, int b) { return a == 0 ? b : b == 0 ? a : std::min(a, b); }

// The smallest quota at root + group and every folder between. A container may see its host's name
// for a group that is not there: then only root counts.
int QuotaOf(const char* root, const char* group, bool version1) {
  Path path;
  const int length = std::snprintf(path.text, kPathBytes, "%s%s", root, group);
  if (length < 0 || length >= kPathBytes) return QuotaAt(root, version1);
  const size_t root_length = std::strlen(root);
  int quota = 0;
  for (char* end = path.text + length; end; end = std::strrchr(path.text, '/')) {
    if (end < path.text + root_length) break;
    *end = 0;
    quota = Tighter(quota, QuotaAt(path.text, version1));
    if (end == path.text + root_length) break;
  }
  return quota;
}

// One line of /proc/self/cgroup, "4:cpu,cpuacct:/group" or "0::/group".
int QuotaOfLine(char* line, const char* mount) {
  line[std::strcspn(line, "\n")] = 0;
  char* controllers = std::strchr(line, ':');
  char* group = controllers ? std::strchr(controllers + 1, ':') : nullptr;
  if (!group) return 0;
  *controllers++ = 0;
  *group++ = 0;
  if (std::strcmp(group, "/") == 0) group[0] = 0;
  Path root;
  if (*controllers == 0) {
    int quota = QuotaOf(mount, group, false);
    if (std::snprintf(root.text, kPathBytes, "%s/unified", mount) < kPathBytes) {
      quota = Tighter(quota, QuotaOf(root.text, group, false));
    }
    return quota;
  }
  char list[256];
  std::snprintf(list, sizeof list, ",%s,", controllers);
  if (!std::strstr(list, ",cpu,")) return 0;
  int quota = 0;
  for (const char* folder : {static_cast<const char*>(controllers), "cpu"}) {
    if (std::snprintf(root.text, kPathBytes, "%s/%s", mount, folder) >= kPathBytes) continue;
    quota = Tighter(quota, QuotaOf(root.text, group, true));
  }
  return quota;
}

int AffinityCpus() {
  for (int cpus = 1024; cpus <= 1 << 20;
       cpus *= 4) {  // the kernel refuses a set smaller than its own
    cpu_set_t* set = CPU_ALLOC(cpus);
    if (!set) return 0;
    const size_t bytes = CPU_ALLOC_SIZE(cpus);
    const bool good = sched_getaffinity(0, bytes, set) == 0;
    const int count = good ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (good) return count;
  }
  return 0;
}

}  // namespace

int CgroupCpus(const char* cgroup_file, const char* mount) {
  FILE* file = std::fopen(cgroup_file, "re");
  if (!file) return 0;
  char line[kPathBytes];
  int quota = 0;
  while (std::fgets(line, sizeof line, file)) quota = Tighter(quota, QuotaOfLine(line, mount));
  std::fclose(file);
  return quota;
}

int UsableCpus() {
  const int cpus = Tighter(AffinityCpus(), CgroupCpus("/proc/self/cgroup", "/sys/fs/cgroup"));
  return std::clamp(cpus, 1, kMaxThreads);
}

bool ParseThreads(const char* text, int* threads) {
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (end == text || *end != 0 || value < 1 || value > kMaxThreads) return false;
  *threads = static_cast<int>(value);
  return true;
}

}  // namespace anyop
