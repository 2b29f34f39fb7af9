// SPDX-License-Identifier: Apache-2.0
// Arguments of a kernel as Python values, and errors back. The operator's table says what they are.
#include "operators/python_kernel.h"

#include <cstring>
#include <memory>
#include <utility>

#include "aten/aten_plan.h"
#include "call/deferred.h"
#include "frameworks/framework.h"
#include "gil.h"
#include "module.h"
#include "objects.h"
#include "operators/kernel_values.h"
#include "router/router.h"

namespace anyop {
namespace {

// Lives as long as its implementation, of a call that is in it at the least.
struct PythonKernel {
  const Operator* op;
  std::string name;
  PyObject* run;
  bool is_anyops;    // the aten backend: its errors are as those of any other kernel of anyop's
  aten::Plan* plan;  // what does the same without Python; nullptr: nothing does
  std::unique_ptr<TorchWay> direct;  // nullptr: run alone calls the function
};

constexpr const char* kEnded = "its kernel is written in Python, which has ended";

// While a framework traces a function it translates every Python
// frame of the thread, and keeps what is in them. A kernel's are none of its business: the hooks
// are taken out for a while.
class PlainFrames : NoCopy {
 public:
  PlainFrames() {
    EachFramework([&](const Framework& row) {
      if (row.tracer) TakeOut(row.tracer);
    });
  }
  ~PlainFrames() {
    if (hooks_.empty()) return;
    const WithoutError without;
    for (const Hook& hook : hooks_)
      const Ref done(PyObject_CallFunctionObjArgs(hook.set.get(), hook.before.get(), nullptr));
  }

 private:
  struct Hook {
    Ref set, before;
  };

  void TakeOut(const char* tracer) {
    Ref set = Attribute(LoadedModule(tracer), "set_eval_frame");
    Ref before(set ? PyObject_CallFunctionObjArgs(set.get(), Py_None, nullptr) : nullptr);
    PyErr_Clear();
    if (before && before.get() != Py_None) hooks_.push_back({std::move(set), std::move(before)});
  }

  std::vector<Hook> hooks_;
};

// The error that is set, taken from Python with its traceback; the status and text that stand for
// it where no Python is: "ValueError: what it says".
Ref TakeException(int32_t* status, std::string* words) {
  TakenError error;
  Ref exception(Py_XNewRef(error.Exception()));
  *status = kAnyopInternalError;
  if (error.Is(PyExc_ValueError)) *status = kAnyopValueError;
  if (error.Is(PyExc_TypeError)) *status = kAnyopTypeError;
  if (error.Is(PyExc_NotImplementedError)) *status = kAnyopNotImplemented;
  if (error.Is(PyExc_MemoryError)) *status = kAnyopOutOfMemory;
  if (error.Is(declined_error)) *status = kAnyopDeclined;
  std::string said;
  error.Text(&said);
  auto* type = exception ? reinterpret_cast<PyObject*>(Py_TYPE(exception.get())) : nullptr;
  const std::string kind = TextOf(Attribute(type, "__name__").get(), "error");
  *words = *status == kAnyopDeclined ? said : kind + ": " + said;
  return exception;
}

std::string TakeError() {
  int32_t status;
  std::string text;
  TakeException(&status, &text);
  return text;
}

// What a kernel raised in this thread, on its way to the Python code that called, and the text that
// goes the same way. A plain pointer: no destructor, which glibc would need memory to note.
struct Raised {
  Ref exception;
  std::string text;
};
thread_local Raised* raised = nullptr;

// The frames of a kernel that failed hold views of memory that is there only during the call; those
// of errors that it handled, too. No function of Python is called: at its limit none could run.
void ClearFrames(PyObject* exception, const KernelValues& values) {
  Ref error(Py_NewRef(exception));
  for (int depth = 0; error && depth < 100 && values.Kept(); ++depth) {
    for (Ref trace(PyException_GetTraceback(error.get())); trace && trace.get() != Py_None;
         trace = Attribute(trace.get(), "tb_next")) {
      const Ref frame(Attribute(trace.get(), "tb_frame"));
      const Ref done(frame ? PyObject_CallMethod(frame.get(), "clear", nullptr) : nullptr);
      PyErr_Clear();  // of one that runs
    }
    error = Ref(PyException_GetContext(error.get()));
  }
}

// Says where it comes from, beside its text; before Python 3.11 exceptions have no notes.
void Note(PyObject* exception, const PythonKernel& kernel) {
  const Ref add(Attribute(exception, "add_note"));
  const std::string text = kernel.op->name + ": raised by its kernel " + kernel.name;
  const Ref done(add ? PyObject_CallFunction(add.get(), "s", text.c_str()) : nullptr);
  PyErr_Clear();
}

// The error that is set fails the call: as itself where the thread is Python's, else by its text.
int32_t FailWithError(const PythonKernel& kernel, const KernelValues& values, bool is_pythons,
                      AnyopCall* call) {
  int32_t status;
  std::string text;
  Ref exception = TakeException(&status, &text);
  if (status != kAnyopDeclined) text = kernel.name + ": " + text;
  const bool interrupts = PyErr_GivenExceptionMatches(exception.get(), PyExc_KeyboardInterrupt);
  const bool as_itself =
      is_pythons && exception && status != kAnyopDeclined &&
      !(kernel.is_anyops && PyErr_GivenExceptionMatches(exception.get(), PyExc_Exception));
  if (exception) ClearFrames(exception.get(), values);
  if (values.Kept()) PyGC_Collect();
  delete std::exchange(raised, nullptr);
  if (as_itself && !values.Kept()) {
    Note(exception.get(), kernel);
    raised = new Raised{std::move(exception), text};
  } else if (interrupts) {
    PyErr_SetInterrupt();
  }
  return call->fail(call, status, text.c_str());
}

// What follows a call that gave result, or an error; nothing of it is held any more.
int32_t Finish(const PythonKernel& self, const KernelValues& values, const Ref& result,
               bool is_pythons, AnyopCall* call) {
  if (!result) return FailWithError(self, values, is_pythons, call);
  if (values.Kept()) PyGC_Collect();  // cycles of the function's own may hold them
  if (const char* kept = values.Kept()) {
    const std::string text = self.name + " keeps " + kept +
                             ", whose memory is there for it only during the call; copy it";
    return call->fail(call, kAnyopValueError, text.c_str());
  }
  return kAnyopOk;
}

// The function itself, with torch's tensors. kAnyopPending: this call is for run.
int32_t RunDirect(const PythonKernel& self, const void* args, bool is_pythons, AnyopCall* call) {
  KernelValues values(*self.op, static_cast<const char*>(args), self.direct.get());
  Ref result;
  {
    const TorchState state(*self.direct, *call);
    Ref positional, named;
    if (!state || !HasStack() || !values.Make(self.direct->names, &positional, &named)) {
      PyErr_Clear();
      return kAnyopPending;
    }
    result = Ref(PyObject_Call(self.direct->function.get(), positional.get(), named.get()));
  }
  return Finish(self, values, result, is_pythons, call);
}

int32_t Run(const void* args, AnyopCall* call) {
  const bool is_pythons = !IsEnding() && PyGILState_GetThisThreadState();
  const WithGil gil;
  if (!gil) return call->fail(call, kAnyopNotImplemented, kEnded);
  const PlainFrames frames;
  const auto& self = *static_cast<const PythonKernel*>(call->context);
  if (self.direct && self.direct->HasRun(call->device_type)) {
    const int32_t status = RunDirect(self, args, is_pythons, call);
    if (status != kAnyopPending) return status;
  }
  KernelValues values(*self.op, static_cast<const char*>(args), nullptr);
  Ref result;
  {
    const Ref tuple(HasStack() ? values.Make() : nullptr);
    if (tuple) {
      const auto stream = reinterpret_cast<uintptr_t>(call->stream);
      result = Ref(PyObject_CallFunction(self.run, "OiiK", tuple.get(), call->device_type,
                                         call->device_id, static_cast<unsigned long long>(stream)));
    }
  }
  if (result && self.direct) self.direct->NoteRun(call->device_type);
  return Finish(self, values, result, is_pythons, call);
}

// Python makes the calls that the plan cannot, and says what is wrong with others.
int32_t RunPlanned(const void* args, AnyopCall* call) {
  int32_t status =
      aten::RunPlan(*static_cast<const PythonKernel*>(call->context)->plan, args, call);
  if (__builtin_expect(status != kAnyopPending, 1)) return status;
  {
    const WithGil gil;
    if (!gil) return call->fail(call, kAnyopNotImplemented, kEnded);
    status = PrepareForAnother(call);
  }
  return status ? status : Run(args, call);
}

// What a resolver returned: run, or a text; None leaves both open, *run stays nullptr. nullptr: an
// error is set.
bool Take(const Implementation& implementation, Ref answer, AnyopKernel* run, void** context,
          std::string* why) {
  if (!answer) {
    *why = TakeError();
    return false;
  }
  if (PyUnicode_Check(answer.get())) {
    const char* text = PyUnicode_AsUTF8AndSize(answer.get(), nullptr);
    *why = text ? text : TakeError();
    return false;
  }
  if (answer.get() == Py_None) return true;
  aten::Plan* plan = TakePlan(*implementation.op, implementation.name, answer.get());
  if (plan) SetKernelOfPlans(RunPlanned);
  *run = plan ? RunPlanned : Run;
  *context = new PythonKernel{implementation.op,
                              implementation.name,
                              answer.get(),
                              implementation.form == "aten",
                              plan,
                              TakeTorchWay(answer.get())};
  answer.Release();
  return true;
}

// Asks anyop.backend.triton_image.make(operator's name, text, kind).
bool MakeTritonImage(const std::string& op, const std::string& text, const char* kind,
                     std::string* answer) {
  const WithGil gil;
  if (!gil) return *answer = kEnded, false;
  const PlainFrames frames;
  const Ref found =
      CallImported("anyop.backend.triton_image", "make", "sss", op.c_str(), text.c_str(), kind);
  const char* said = found ? PyUnicode_AsUTF8AndSize(found.get(), nullptr) : nullptr;
  *answer = said ? said : TakeError();
  return said && *said == '/';
}

// Resolve of a table's entries: asks anyop.backend.<form>.provide(operator's name, text).
bool ResolveForm(const Implementation& implementation, AnyopKernel* run, void** context,
                 std::string* why) {
  const WithGil gil;
  if (!gil) return *why = kEnded, false;
  const PlainFrames frames;
  const std::string name = "anyop.backend." + implementation.form;
  return Take(implementation,
              CallImported(name.c_str(), "provide", "ss", implementation.op->name.c_str(),
                           implementation.text.c_str()),
              run, context, why);
}

// The router asks Python from now on.
const bool installed = [] {
  for (const char* form : {"aten", "python", "flaggems", "flaggems_c"})
    SetProvider(form, ResolveForm);
  SetImageMaker(MakeTritonImage);
  return true;
}();

}  // namespace

bool RaiseKernelError(const char* message) {
  if (__builtin_expect(!raised, 1)) return false;
  Raised* mine = std::exchange(raised, nullptr);
  const char* text = std::strstr(message, ": ");  // behind the operator's name; may be cut off
  // NOLINTNEXTLINE(bugprone-not-null-terminated-result): as much as there is
  const bool fits = text && std::strncmp(text + 2, mine->text.c_str(), std::strlen(text + 2)) == 0;
  if (fits) SetException(mine->exception.Release());
  delete mine;
  return fits;
}

void ForgetCallable(void* resolver, void* context) {
  auto* kernel = static_cast<PythonKernel*>(context);
  if (kernel) ReleaseObject(kernel->run);
  if (kernel && kernel->direct) ForgetTorchWay(std::move(kernel->direct));
  if (kernel && kernel->plan) aten::FreePlan(kernel->plan);
  if (resolver) ReleaseObject(resolver);
  delete kernel;
}

bool ResolveCallable(const Implementation& implementation, AnyopKernel* run, void** context,
                     std::string* why) {
  const WithGil gil;
  if (!gil) return *why = kEnded, false;
  const PlainFrames frames;
  auto* resolver = static_cast<PyObject*>(implementation.resolve_context);
  return Take(implementation, Ref(PyObject_CallObject(resolver, nullptr)), run, context, why);
}

}  // namespace anyop
