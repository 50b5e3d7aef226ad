// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/ohler55/ojg/jp"
	"github.com/ohler55/ojg/oj"
)

// pathTemplate is a template of -o jsonpath=TEMPLATE, as kubectl writes them: text, and
// JSONPath expressions in braces.
type pathTemplate []pathPart

// pathPart is a text, an expression, or a body that is repeated for each result of an
// expression.
type pathPart struct {
	text   string
	expr   jp.Expr // nil: a text
	rooted bool    // expr begins at the whole output, also in a body
	loop   bool
	body   pathTemplate
}

// parsePathTemplate reads a template. One without braces is a single expression.
func parsePathTemplate(text string) (pathTemplate, error) {
	if text == "" {
		return nil, errors.New("the template is empty: write one such as {[*].name}")
	}
	if !strings.ContainsAny(text, "{}") {
		text = "{" + text + "}"
	}
	p := pathParser{rest: text}
	t, err := p.parts(false)
	if err != nil {
		return nil, fmt.Errorf("parse template %q: %w", text, err)
	}
	return t, nil
}

// pathParser reads a template from its beginning to its end.
type pathParser struct{ rest string }

// parts reads until the end of the template, or until the end of a body.
func (p *pathParser) parts(inBody bool) (pathTemplate, error) {
	var t pathTemplate
	for p.rest != "" {
		before, after, found := strings.Cut(p.rest, "{")
		if before != "" {
			t = append(t, pathPart{text: before})
		}
		if p.rest = after; !found {
			break
		}
		inside, err := p.braced()
		if err != nil {
			return nil, err
		}
		if inside == "end" {
			if !inBody {
				return nil, errors.New("{end} has no {range EXPRESSION} before it")
			}
			return t, nil
		}
		part, err := p.part(inside)
		if err != nil {
			return nil, err
		}
		t = append(t, part)
	}
	if inBody {
		return nil, errors.New("{range EXPRESSION} has no {end}")
	}
	return t, nil
}

// braced reads up to the closing brace, which does not count in quotes.
func (p *pathParser) braced() (string, error) {
	quote, escaped := rune(0), false
	for i, r := range p.rest {
		switch {
		case escaped:
			escaped = false
		case r == '\\' && quote != 0:
			escaped = true
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
		case r == '"' || r == '\'':
			quote = r
		case r == '}':
			inside := strings.TrimSpace(p.rest[:i])
			p.rest = p.rest[i+1:]
			return inside, nil
		}
	}
	return "", fmt.Errorf("{%s has no closing brace", p.rest)
}

func (p *pathParser) part(inside string) (pathPart, error) {
	if strings.HasPrefix(inside, `"`) {
		text, err := strconv.Unquote(inside)
		if err != nil {
			return pathPart{}, fmt.Errorf(`%s is not a quoted text: write one such as {"\n"}`, inside)
		}
		return pathPart{text: text}, nil
	}
	of, loop := strings.CutPrefix(inside, "range ")
	part, err := expressionPart(strings.TrimSpace(of))
	if err != nil || !loop {
		return part, err
	}
	part.loop = true
	part.body, err = p.parts(true)
	return part, err
}

// expressionPart reads an expression: $ is the whole output, and an expression without it
// begins at the current object.
func expressionPart(text string) (pathPart, error) {
	part := pathPart{rooted: strings.HasPrefix(text, "$")}
	var whole string
	switch {
	case part.rooted || strings.HasPrefix(text, "@"):
		whole = "$" + text[1:]
	case strings.HasPrefix(text, ".") || strings.HasPrefix(text, "["):
		whole = "$" + text
	default:
		whole = "$." + text
	}
	var err error
	if whole == "$." { // kubectl's name of the current object
		whole = "$"
	}
	if part.expr, err = jp.ParseString(strings.ReplaceAll(whole, ".[", "[")); err != nil {
		return part, fmt.Errorf("{%s} is not a JSONPath expression: %w", text, err)
	}
	return part, nil
}

// print returns the text that the template makes of an output.
func (t pathTemplate) print(output []byte) (string, error) {
	v, err := oj.Parse(output)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = t.write(&b, v, v)
	return b.String(), err
}

func (t pathTemplate) write(b *strings.Builder, whole, current any) error {
	for _, part := range t {
		if part.expr == nil {
			b.WriteString(part.text)
			continue
		}
		from := current
		if part.rooted {
			from = whole
		}
		for i, result := range part.expr.Get(from) {
			if part.loop {
				if err := part.body.write(b, whole, result); err != nil {
					return err
				}
				continue
			}
			text, err := plainValue(result)
			if err != nil {
				return err
			}
			if i > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(text)
		}
	}
	return nil
}

// plainValue returns a string without quotes, nothing for null, and other values as JSON.
func plainValue(v any) (string, error) {
	switch v := v.(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	case json.Number:
		return v.String(), nil
	}
	text, err := encode(v, "")
	return strings.TrimSpace(string(text)), err
}
