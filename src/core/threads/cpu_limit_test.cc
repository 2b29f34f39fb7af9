// SPDX-License-Identifier: Apache-2.0
// Quotas of made-up cgroup trees, and numbers of threads as a user writes them.
#include "threads/cpu_limit.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/check.h"

namespace {

namespace fs = std::filesystem;

// A folder that holds a /proc/self/cgroup and a mount of cgroups, removed at the end.
class Tree {
 public:
  Tree() {
    std::string pattern = (fs::temp_directory_path() / "anyop-cgroup-XXXXXX").string();
    root_ = mkdtemp(pattern.data());
  }
  ~Tree() { fs::remove_all(root_); }
  void Write(const std::string& file, const std::string& text) const {
    const fs::path path = root_ / file;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  int Cpus() const {
    return anyop::CgroupCpus((root_ / "cgroup").c_str(), (root_ / "mount").c_str());
  }

 private:
  fs::path root_;
};

TEST(Version2RoundsUp) {
  Tree tree;
  tree.Write("cgroup", "0::/\n");
  tree.Write("mount/cpu.max", "250000 100000\n");
  CHECK_EQ(tree.Cpus(), 3);
  tree.Write("mount/cpu.max", "max 100000\n");
  CHECK_EQ(tree.Cpus(), 0);
}

TEST(Version2TakesTheTightestOfAllLevels) {
  Tree tree;
  tree.Write("cgroup", "0::/user/session\n");
  tree.Write("mount/user/session/cpu.max", "800000 100000\n");
  tree.Write("mount/user/cpu.max", "150000 100000\n");
  CHECK_EQ(tree.Cpus(), 2);
  tree.Write("mount/cpu.max", "100000 100000\n");
  CHECK_EQ(tree.Cpus(), 1);
}

TEST(Version1) {
  Tree tree;
  tree.Write("cgroup", "7:memory:/x\n4:cpu,cpuacct:/job\n1:cpuset:/job\n");
  tree.Write("mount/cpu,cpuacct/job/cpu.cfs_quota_us", "400000\n");
  tree.Write("mount/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  CHECK_EQ(tree.Cpus(), 4);
  tree.Write("mount/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
  CHECK_EQ(tree.Cpus(), 0);
}

TEST(Version1InAContainerThatSeesItsHostsName) {
  Tree tree;
  tree.Write("cgroup", "4:cpu:/docker/0123\n");
  tree.Write("mount/cpu/cpu.cfs_quota_us", "50000\n");
  tree.Write("mount/cpu/cpu.cfs_period_us", "100000\n");
  CHECK_EQ(tree.Cpus(), 1);
}

TEST(NothingToRead) {
  Tree tree;
  CHECK_EQ(tree.Cpus(), 0);
  tree.Write("cgroup", "rubbish\n\n::\n0:\n");
  CHECK_EQ(tree.Cpus(), 0);
  CHECK(anyop::UsableCpus() >= 1);
}

TEST(Parse) {
  int threads = 0;
  CHECK(anyop::ParseThreads("3", &threads));
  CHECK_EQ(threads, 3);
  CHECK(anyop::ParseThreads("1024", &threads));
  for (const char* bad : {"", "0", "-1", "1025", "two", "2x", "2.0", "99999999999999999999"}) {
    CHECK(!anyop::ParseThreads(bad, &threads));
  }
}

}  // namespace
