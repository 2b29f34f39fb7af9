# SPDX-License-Identifier: Apache-2.0
"""Libraries that are built once: found by the contents of what they are built from, checked before they are loaded.

    <cache>/entries/<name>-<key>/<variant>/    one library with what belongs to it, and manifest.json
    <cache>/locks/<name>-<key>.lock            held while an entry is built; says by whom
    <cache>/building/                          private folders of builds that go on

A key is a hash of the inputs that are known before the build. What the build found out (the headers it reached, the
compilers it ran) is in the manifest with the hash of each file's contents; variants of one key differ in these.
Reading takes no lock, writes nothing and needs no compiler.
"""
