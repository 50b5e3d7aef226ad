// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import "github.com/cadastre/cadastre/kvdb"

type kvdbKeyValue = kvdb.KeyValue
