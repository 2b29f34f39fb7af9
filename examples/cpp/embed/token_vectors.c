/* SPDX-License-Identifier: Apache-2.0 */
/* The first step of a BERT in C: the vectors that the tokens have before the first layer.

   token_vectors model.safetensors 101 7592 102 */
#include <anyop/anyop.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "weights.h"

enum { kMostTokens = 512 };

static int Refuse(const char* text) {
  fprintf(stderr, "token_vectors: %s\n", text);
  return 2;
}

/* An argument is only read, so it may be const. */
static AnyopValue Give(const AnyopTensor* tensor) {
  AnyopValue value = {0};
  value.kind = kAnyopTensorValue;
  value.as.tensor = (AnyopTensor*)tensor;
  return value;
}

/* op(x, y), both tensors, into a new tensor; NULL with AnyopLastError(). result: its position. */
static AnyopTensor* Call2(const char* op, const AnyopTensor* x, const AnyopTensor* y, int result) {
  AnyopValue values[4] = {Give(x), Give(y)}; /* zero: the default, and a result to be made */
  if (AnyopInvoke(AnyopFindOperator(op), values, result + 1, NULL) != kAnyopOk) return NULL;
  return values[result].as.tensor;
}

/* layer_norm(x, weight, bias, eps=1e-12) in the memory of x. */
static int LayerNorm(AnyopTensor* x, const AnyopTensor* weight, const AnyopTensor* bias) {
  AnyopValue values[7] = {Give(x), Give(weight), Give(bias)};
  values[3].kind = kAnyopFloatValue;
  values[3].as.f = 1e-12;
  values[6] = Give(x);
  return AnyopInvoke(AnyopFindOperator("layer_norm"), values, 7, NULL);
}

/* The first rows of a matrix, in the same memory. shape is the caller's and must outlive them. */
static AnyopTensor FirstRows(const AnyopTensor* matrix, int64_t* shape, int64_t rows) {
  AnyopTensor first = *matrix;
  shape[0] = rows;
  shape[1] = matrix->shape[1];
  first.shape = shape;
  return first;
}

static void Print(const AnyopTensor* x) {
  const float* data = x->data;
  for (int64_t t = 0; t < x->shape[0]; ++t) {
    for (int64_t d = 0; d < x->shape[1]; ++d) printf("%s%.9g", d ? " " : "", *data++);
    printf("\n");
  }
}

/* norm(word + position + type 0) of every token. */
static AnyopTensor* TokenVectors(Weights* weights, int64_t* ids, int64_t count) {
  static const char* const kNames[] = {
      "embeddings.word_embeddings.weight",
      "embeddings.position_embeddings.weight",
      "embeddings.token_type_embeddings.weight",
      "embeddings.LayerNorm.weight",
      "embeddings.LayerNorm.bias",
  };
  const AnyopTensor* read[5];
  for (int i = 0; i < 5; ++i) {
    read[i] = ReadWeight(weights, kNames[i]);
    if (!read[i]) return Refuse(WeightsError()), NULL;
    if (i < 3 && read[i]->ndim != 2) return Refuse("the embeddings are no matrices"), NULL;
  }
  if (read[1]->shape[0] < count || read[2]->shape[0] < 1) {
    return Refuse("more tokens than the model has positions"), NULL;
  }
  int64_t shapes[2][2], stride = 1;
  const AnyopTensor positions = FirstRows(read[1], shapes[0], count);
  const AnyopTensor type = FirstRows(read[2], shapes[1], 1);
  const AnyopTensor indices = {ids, 1, 0, 1, 0 /* int */, 64, 1, &count, &stride, 0};
  AnyopTensor* words = Call2("embedding", &indices, read[0], 2);
  AnyopTensor* placed = words ? Call2("add", words, &positions, 3) : NULL;
  AnyopTensor* x = placed ? Call2("add", placed, &type, 3) : NULL;
  AnyopDeleteTensor(words);
  AnyopDeleteTensor(placed);
  if (x && LayerNorm(x, read[3], read[4]) == kAnyopOk) return x;
  Refuse(AnyopLastError());
  AnyopDeleteTensor(x);
  return NULL;
}

int main(int count, char** arguments) {
  int64_t ids[kMostTokens];
  const int64_t tokens = count - 2;
  if (tokens < 1 || tokens > kMostTokens) {
    return Refuse("expected a file and 1 to 512 token numbers");
  }
  for (int64_t t = 0; t < tokens; ++t) {
    char* end;
    errno = 0;
    ids[t] = strtoll(arguments[t + 2], &end, 10);
    if (errno || end == arguments[t + 2] || *end) return Refuse("a token number is no integer");
  }
  Weights* weights = OpenWeights(arguments[1]);
  if (!weights) return Refuse(WeightsError());
  AnyopTensor* x = TokenVectors(weights, ids, tokens);
  if (x) Print(x);
  AnyopDeleteTensor(x);
  CloseWeights(weights);
  return x ? 0 : 2;
}
