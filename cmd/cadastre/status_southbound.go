// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// fewValues limits the values of the network that the status names, unless it is wide.
const fewValues = 5

// southboundTexts describes the values of the network: how many there are in each state, and
// why some are not made.
func southboundTexts(s *localapi.Southbound, now time.Time, wide bool) (all []string) {
	if s == nil {
		return nil
	}
	text := plural(s.Made, "value", "values") + " made"
	if s.Pending > 0 {
		text += fmt.Sprintf(", %d pending", s.Pending)
	}
	if s.Failed > 0 {
		text += fmt.Sprintf(", %d failed", s.Failed)
	}
	if s.Foreign > 0 {
		text += fmt.Sprintf(" (%d because of objects of other programs)", s.Foreign)
	}
	all = append(all, text)
	values := s.Values
	if !wide {
		values = values[:min(len(values), fewValues)]
	}
	for _, v := range values {
		all = append(all, southboundText(v, now))
	}
	if rest := s.Pending + s.Failed - len(values); rest > 0 {
		text := plural(rest, "further value is", "further values are") + " not made"
		if !wide {
			text += ": see status -o wide"
		}
		all = append(all, text)
	}
	return all
}

func southboundText(v localapi.SouthboundValue, now time.Time) string {
	if v.Error == "" {
		return fmt.Sprintf("%s waits for %s", v.Key, strings.Join(v.WaitsFor, ", "))
	}
	text := v.Key + " failed: " + v.Error
	if v.Retry != nil {
		text += "; it is tried again in " + max(v.Retry.Sub(now), 0).Round(time.Second).String()
	}
	return text
}
