// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/cadastre/cadastre/plugins/podmanager"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// cni does the work of the CNI plugin for one call and answers with its output. It answers
// with 503 if the plugin should do as without an agent.
func (p *RESTAPI) cni(w http.ResponseWriter, r *http.Request) {
	began := p.now()
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var call cni.Call
	if err == nil {
		call, err = cni.ParseCall(body)
	}
	if err != nil {
		writeError(w, http.StatusBadRequest, fmt.Errorf("body of %s: %w", r.URL.Path, err))
		return
	}
	req, conf, cerr := call.Request()
	switch {
	case cerr != nil:
		_ = writeOutput(w, cerr.Print(conf), 1)
		return
	case p.Pods == nil:
		writeError(w, http.StatusServiceUnavailable, podmanager.ErrAway)
		return
	}
	ctx, span := p.trace(r, req.Command, began)
	reply, err := p.Pods.Serve(ctx, req)
	var werr error
	at := span.answer(w)
	defer func() { span.end(at, werr) }()
	switch {
	case err == nil:
	case errors.Is(err, podmanager.ErrAway):
		span.refuse(err)
		writeError(w, http.StatusServiceUnavailable, err)
		return
	case errors.As(err, &cerr):
		werr = writeOutput(w, cerr.Print(conf), 1)
		return
	default:
		span.refuse(err)
		writeError(w, http.StatusInternalServerError, err)
		return
	}
	out, cerr := cni.Output(req, reply, conf)
	exit := 0
	if cerr != nil {
		out, exit = cerr.Print(conf), 1
	}
	werr = writeOutput(w, out, exit)
	err = werr
	if cerr != nil { // the caller has no result
		err = cerr
	}
	p.Pods.Delivered(req, reply, err)
}

// writeOutput writes the output of the plugin and its exit code, and flushes them, which
// fails if the caller has gone.
func writeOutput(w http.ResponseWriter, out []byte, exit int) error {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(out)))
	w.Header().Set(cni.HeaderExit, strconv.Itoa(exit))
	w.WriteHeader(http.StatusOK)
	if _, err := w.Write(out); err != nil {
		return err
	}
	return http.NewResponseController(w).Flush()
}
