// SPDX-License-Identifier: Apache-2.0
// What makes one runtime differ from CUDA's: a row of runtimes.toml, or of the user's file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace anyop::cuda_like {

using Texts = std::vector<std::string>;

struct Row {
  std::string name, vendor, prefix;
  std::string shape = "cuda";  // "acl", "cnrt": what its functions are like
  Texts libraries;  // tried in this order; one that begins with $NAME where the variable is set
  std::map<std::string, Texts> names;  // by our name: the vendor's, one of which is there
  Texts missing;                       // our names of those that the runtime may lack
  Texts module_libraries;              // of images; empty: the runtime's own
  std::string module_prefix;
  std::vector<int> attributes;  // numbers of units, major and minor; empty: not known
  int64_t oldest = 0;           // version of the runtime
  int64_t device_type = 12;
  std::string toolchain;  // of kernels, for anyop doctor
  int64_t warp = 0;       // threads of one, for anyop doctor; 0: not known
  std::string mend;       // what to do where there is no such runtime
};

// Ours, and those of ANYOP_RUNTIMES, which replace ours of the same name. Returns the problem with
// the user's file, naming it and the line; "" when there is none.
std::string ReadRows(std::vector<Row>* rows);

}  // namespace anyop::cuda_like
