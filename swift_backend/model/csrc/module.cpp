// What Python calls: the arithmetic is in the headers. Addresses are of contiguous tensors on the CPU, and the caller
// vouches for them and for their sizes.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>

#if defined(__x86_64__)
#include "sublayers.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace {

using namespace swift;

template <class T>
T* at(unsigned long long address) {
    return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

// (kind, weight, bias, scale, outputs, inputs)
bool read_linear(PyObject* tuple, Linear* linear) {
    unsigned long long weight, bias, scale;
    long long outputs, inputs;
    if (!PyArg_ParseTuple(tuple, "iKKKLL", &linear->kind, &weight, &bias, &scale, &outputs, &inputs)) return false;
    linear->weight = at<const char>(weight);
    linear->bias = at<const float>(bias);
    linear->scale = at<const float>(scale);
    linear->outputs = outputs;
    linear->inputs = inputs;
    return true;
}

// (weight or 0, eps)
bool read_norm(PyObject* tuple, Norm* norm) {
    unsigned long long weight;
    if (!PyArg_ParseTuple(tuple, "Kf", &weight, &norm->eps)) return false;
    norm->weight = at<const float>(weight);
    return true;
}

template <class T>
PyObject* capsule_of(const T& plan, const char* name) {
    return PyCapsule_New(new T(plan), name, [](PyObject* capsule) {
        delete static_cast<T*>(PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule)));
    });
}

// A plan and so many numbers; null, and an exception, where it is something else.
template <class T>
const T* read_call(PyObject* const* arguments, Py_ssize_t count, const char* name, Py_ssize_t wanted,
                   unsigned long long* numbers) {
    if (count != wanted + 1) {
        PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, got %zd", name, wanted + 1, count);
        return nullptr;
    }
    for (Py_ssize_t i = 0; i < wanted; ++i) numbers[i] = PyLong_AsUnsignedLongLong(arguments[i + 1]);
    return PyErr_Occurred() ? nullptr : static_cast<const T*>(PyCapsule_GetPointer(arguments[0], name));
}

PyObject* linear_plan(PyObject*, PyObject* tuple) {
    Linear linear;
    return read_linear(tuple, &linear) ? capsule_of(linear, "linear") : nullptr;
}

PyObject* run_linear(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    unsigned long long n[4];
    const auto* plan = read_call<Linear>(arguments, count, "linear", 4, n);
    if (!plan) return nullptr;
    Py_BEGIN_ALLOW_THREADS
    multiply_only(*plan, at<const float>(n[0]), at<float>(n[1]), n[2], static_cast<int>(n[3]));
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyObject* mlp_plan(PyObject*, PyObject* arguments) {
    PyObject *norm, *up, *down;
    Mlp mlp;
    if (!PyArg_ParseTuple(arguments, "OOOi", &norm, &up, &down, &mlp.activation)) return nullptr;
    if (!read_norm(norm, &mlp.norm) || !read_linear(up, &mlp.up) || !read_linear(down, &mlp.down)) return nullptr;
    return capsule_of(mlp, "mlp");
}

PyObject* run_mlp(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    unsigned long long n[4];
    const auto* plan = read_call<Mlp>(arguments, count, "mlp", 4, n);
    if (!plan) return nullptr;
    Py_BEGIN_ALLOW_THREADS
    plan->run(at<const float>(n[0]), at<float>(n[1]), n[2], static_cast<int>(n[3]));
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyObject* attention_plan(PyObject*, PyObject* arguments) {
    PyObject *norm, *q_norm, *k_norm, *qkv, *out;
    AttentionSublayer plan;
    long long heads, kv_heads, head_dim, window, from, size, stride;
    if (!PyArg_ParseTuple(arguments, "OOOOO(LLLLff)(LLL)", &norm, &q_norm, &k_norm, &qkv, &out, &heads, &kv_heads,
                          &head_dim, &window, &plan.heads.scale, &plan.heads.cap, &from, &size, &stride))
        return nullptr;
    if (!read_norm(norm, &plan.norm) || !read_norm(q_norm, &plan.q_norm) || !read_norm(k_norm, &plan.k_norm) ||
        !read_linear(qkv, &plan.qkv) || !read_linear(out, &plan.out))
        return nullptr;
    plan.heads.heads = heads, plan.heads.kv_heads = kv_heads, plan.heads.head_dim = head_dim, plan.heads.window = window;
    plan.rope = {from, size, stride};
    return capsule_of(plan, "attention");
}

PyObject* run_attention(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    unsigned long long n[10];
    const auto* plan = read_call<AttentionSublayer>(arguments, count, "attention", 10, n);
    if (!plan) return nullptr;
    const Rows rows{at<const int64_t>(n[6]), at<const int64_t>(n[7]), static_cast<int64_t>(n[8])};
    Py_BEGIN_ALLOW_THREADS
    plan->run(at<const float>(n[0]), at<float>(n[1]), at<const float>(n[2]), at<const float>(n[3]), at<float>(n[4]),
              at<const int64_t>(n[5]), rows, static_cast<int>(n[9]));
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyObject* attend(PyObject*, PyObject* arguments) {
    unsigned long long queries, out, slots, table, paths;
    long long count, stride, heads, kv_heads, head_dim, window;
    float scale, cap;
    int threads;
    if (!PyArg_ParseTuple(arguments, "KLKKKKL(LLLLff)i", &queries, &stride, &out, &slots, &table, &paths, &count,
                          &heads, &kv_heads, &head_dim, &window, &scale, &cap, &threads))
        return nullptr;
    const Heads shape{heads, kv_heads, head_dim, window, scale, cap};
    const Rows rows{at<const int64_t>(table), at<const int64_t>(paths), count};
    Py_BEGIN_ALLOW_THREADS
    Attention attention(shape, rows, at<const float>(slots), at<const float>(queries), stride, at<float>(out), threads);
#pragma omp parallel num_threads(threads)
    attention.run();
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyObject* supported(PyObject*, PyObject*) {
    return PyBool_FromLong(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
}

// Large pages where the system has some to spare: a pass reads all weights, and each small page costs a look-up.
PyObject* use_large_pages(PyObject*, PyObject* arguments) {
    unsigned long long address, bytes;
    if (!PyArg_ParseTuple(arguments, "KK", &address, &bytes)) return nullptr;
#if defined(MADV_HUGEPAGE)
    constexpr unsigned long long PAGE = 4096;
    const unsigned long long first = (address + PAGE - 1) / PAGE * PAGE, end = (address + bytes) / PAGE * PAGE;
    if (end > first) madvise(at<void>(first), end - first, MADV_HUGEPAGE);  // advice: it may not be followed
#endif
    Py_RETURN_NONE;
}

}  // namespace

static PyMethodDef methods[] = {
    {"supported", supported, METH_NOARGS, "Whether this CPU has what the rest needs."},
    {"use_large_pages", use_large_pages, METH_VARARGS, "address, bytes"},
    {"linear_plan", linear_plan, METH_VARARGS, "kind, weight, bias, scale, outputs, inputs"},
    {"linear", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(run_linear)), METH_FASTCALL,
     "plan, x, y, rows, threads"},
    {"mlp_plan", mlp_plan, METH_VARARGS, "norm, up, down, activation"},
    {"mlp", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(run_mlp)), METH_FASTCALL,
     "plan, x, y, rows, threads"},
    {"attention_plan", attention_plan, METH_VARARGS, "norm, q_norm, k_norm, qkv, out, heads, rope"},
    {"attention", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(run_attention)), METH_FASTCALL,
     "plan, x, y, cos, sin, slots, slot, table, paths, rows, threads"},
    {"attend", attend, METH_VARARGS, "queries, stride, out, slots, table, paths, rows, heads, threads"},
    {nullptr, nullptr, 0, nullptr},
};
#else
static PyObject* supported(PyObject*, PyObject*) { return PyBool_FromLong(0); }

static PyMethodDef methods[] = {
    {"supported", supported, METH_NOARGS, "Whether this CPU has what the rest needs."},
    {nullptr, nullptr, 0, nullptr},
};
#endif

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_rowwise", nullptr, -1, methods};

PyMODINIT_FUNC PyInit__rowwise() { return PyModule_Create(&definition); }
