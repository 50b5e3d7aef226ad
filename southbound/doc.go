// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package southbound makes the values of transactions true. A Descriptor makes the values
// of one kind, such as wires of pods or routes.
package southbound
