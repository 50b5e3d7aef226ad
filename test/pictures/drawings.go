// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

// drawings returns the drawings by the names of their files.
func drawings() map[string]drawing { return map[string]drawing{} }
