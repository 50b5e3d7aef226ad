// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/cadastre/cadastre/internal/columns"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// forceInUse is the help of --force of the verbs that the agent refuses for what is in use.
const forceInUse = "also what is in use, and if a witness cannot be read completely"

// postInUse is post of a request that the agent refuses if something is in use. The InUse of
// the reply has such a refusal, and postInUse returns no error for it.
func (c *client) postInUse(ctx context.Context, path string, body, reply any) error {
	err := c.post(ctx, path, body, reply)
	var refused *refusedError
	if !errors.As(err, &refused) || refused.status != http.StatusConflict {
		return err
	}
	var in struct {
		Uses []localapi.Use `json:"inUse"` // nil: another refusal
	}
	if json.Unmarshal(refused.body, &in) != nil || in.Uses == nil {
		return err
	}
	if err := json.Unmarshal(refused.body, reply); err != nil {
		return fmt.Errorf("read the agent's refusal of %s: %w", path, err)
	}
	return nil
}

// inUseText returns what is in use, and the witnesses that could not be read, for people.
func inUseText(in localapi.InUse) (text string) {
	section := func(title string, lines []string) {
		if len(lines) > 0 {
			text += title + ":\n"
		}
		for _, line := range lines {
			text += "  " + columns.Clean(line) + "\n"
		}
	}
	section("in use now", each(in.Uses, func(u localapi.Use) string { return u.Text }))
	section("cannot be told, because a witness was not read completely", in.Incomplete)
	return text
}

// refusedInUse returns the error of a request that was refused, or would be.
func refusedInUse(nothing string) error {
	return &exitError{exitFindings, errors.New("refused: " + nothing + ": --force does it all the same")}
}
