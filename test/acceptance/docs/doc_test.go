// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package docs tests the examples of all pages: it decodes every block of YAML strictly, and
// runs the commands of every block of a shell on a node with pods. Lists beside the tests
// name what cannot be decoded or run here, each entry with its reason; an entry that nothing
// needs fails. The package has tests only.
package docs
