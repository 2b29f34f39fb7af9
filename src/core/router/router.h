// SPDX-License-Identifier: Apache-2.0
// The implementations of all operators and the rules among them. Everything here takes a lock;
// calls only read what it publishes.
#pragma once

#include <string>
#include <vector>

#include "router/choose/route.h"
#include "router/rules/rules.h"

namespace anyop {

// Takes in an operator and the kernels of its table, and publishes its first route.
void AddToRouter(Operator* op);

// Takes it out again, where it could not be taken in whole.
void ForgetInRouter(const Operator* op);

// Reads the environment's routes; what is wrong with them, empty when nothing is.
std::string StartRouter();

// Adds an implementation, in place of one of the same name. Takes over `made`.
bool AddImplementation(Operator* op, std::unique_ptr<Implementation> made, const char* when,
                       std::string* error);
bool RemoveImplementation(Operator* op, const std::string& name, std::string* error);

// Rules of a file or preset in place of all loaded ones; path nullptr: none.
bool LoadRoutes(const char* path, std::string* error);

void SetDeterministic(bool on);
bool IsDeterministic();

// Who makes implementations of a form callable, as long as no other is set: Resolve of table
// entries.
void SetProvider(const std::string& form, Resolve resolve);

// Who makes images of Triton kernels (anyop/forms/triton_image.h): writes the file's path to
// *answer, or why there is none and returns false. Called without any lock of the core, in a call.
using MakeImage = bool (*)(const std::string& op, const std::string& text, const char* kind,
                           std::string* answer);
void SetImageMaker(MakeImage make);

// While watched, calls go through Choose, which logs, records and counts.
enum Watch : uint32_t { kWatchLog = 1, kWatchRecord = 2, kWatchScopes = 4 };
void SetWatch(Watch what, bool on);
void WatchOperator(Operator* op);
bool IsWatched(const Operator* op);

// Makes an implementation ready or missing.
void MakeReady(const Implementation* implementation);

// Those of one operator, the preferred first. Within a Reading.
std::vector<const Implementation*> ListImplementations(const Operator* op);

// Whether the text of a scope names operators and backends that there are.
bool CheckScope(const std::string& text, std::string* error);
// The scope of a text that a call brings; nullptr and *error when it has a mistake or names what
// there is not.
const Scope* UseScope(std::string_view text, std::string* error);

// Who is asked in turn within a scope on this kind of device; nullptr where no rule of it fits the
// operator.
const Variants* VariantsInScope(const Operator* op, const Route& route, const Scope& scope,
                                int device_type);

// All routes anew, of what has become known of devices.
void PublishWhatIsKnown();

// Whether ANYOP_DISABLE removes it.
bool IsDisabled(const Implementation& implementation);

// Why an implementation is on no route of this kind of device; empty when it is on them.
std::string WhyNotRouted(const Implementation& implementation, int device_type);

// What rules name in a library that came after them, and is not there, said on stderr.
void ReportMissingOperators();

// The rules in force and where they come from, JSON.
std::string RoutesJson();
// The operators that a pattern fits, the overloads of ATen's among these that it fits ("*": all),
// the rules that concern them ("*": all), and why no call gets to one. JSON, for `anyop routes`.
std::string RulesAboutJson(const std::string& pattern, const std::vector<std::string>& overloads);

}  // namespace anyop
