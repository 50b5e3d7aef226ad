// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
	"github.com/cadastre/cadastre/web"
)

// maxBody bounds the body of a request.
const maxBody = 4 << 20

// Handler serves the whole API.
func (p *RESTAPI) Handler() http.Handler {
	mux := p.readOnly()
	mux.HandleFunc("POST "+localapi.PathCNI, p.cni)
	mux.HandleFunc("POST "+localapi.PathCNIProcess, offered(p.Traces != nil, p.cniProcess))
	mux.HandleFunc("POST "+localapi.PathRelease, p.release)
	mux.HandleFunc("POST "+localapi.PathResync, offered(p.State != nil, p.resync))
	mux.HandleFunc("GET "+localapi.PathBackup, offered(p.Database != nil, p.backup))
	mux.HandleFunc("GET "+localapi.PathCheck, p.check)
	mux.HandleFunc("GET "+localapi.PathCheckLedger, p.checkLedger)
	mux.HandleFunc("POST "+localapi.PathRepair, p.repair)
	mux.HandleFunc("GET "+localapi.PathLogs, offered(p.Logs != nil, p.logs))
	mux.HandleFunc("GET "+localapi.PathAccept, offered(p.Doubt != nil, p.accept(true)))
	mux.HandleFunc("POST "+localapi.PathAccept, offered(p.Doubt != nil, p.accept(false)))
	mux.HandleFunc("POST "+localapi.PathDispatch, offered(p.State != nil, p.dispatch))
	mux.HandleFunc("POST "+localapi.PathNodeRelease, offered(p.Cluster != nil, p.releaseNode))
	mux.HandleFunc("POST "+localapi.PathApply, offered(p.Cluster != nil, p.apply))
	mux.HandleFunc("POST "+localapi.PathReclaimRun, offered(p.Reclaims != nil, p.runReclaim))
	mux.HandleFunc("POST "+localapi.PathReclaimUndo, offered(p.Reclaims != nil, p.undoReclaim))
	mux.HandleFunc("POST "+localapi.PathDockerPoolRelease, withDocker(p.Docker != nil, p.releaseDockerPool))
	mux.HandleFunc("POST "+localapi.PathDockerPoolKeep, withDocker(p.Docker != nil, p.keepDockerPool))
	return answerAll(mux)
}

// ReadOnlyHandler serves the part of the API that a network may see.
func (p *RESTAPI) ReadOnlyHandler() http.Handler { return answerAll(p.readOnly()) }

// metricsHandler serves metrics and probes only.
func (p *RESTAPI) metricsHandler() http.Handler { return answerAll(p.observed()) }

func (p *RESTAPI) readOnly() *http.ServeMux {
	mux := p.observed()
	mux.HandleFunc("GET "+localapi.PathStatus, func(w http.ResponseWriter, _ *http.Request) {
		s := p.Agent.Status()
		s.Notes = slices.Concat(s.Notes, p.unheard.notes())
		s.Notes, s.Blocks, s.Claims = present(s.Notes), present(s.Blocks), present(s.Claims)
		s.Witnesses = present(s.Witnesses)
		writeJSON(w, http.StatusOK, s)
	})
	mux.HandleFunc("GET "+localapi.PathLeases, p.leases)
	mux.HandleFunc("GET "+localapi.PathEvents, offered(p.Loop != nil, p.events))
	mux.HandleFunc("GET "+localapi.PathSink, offered(p.Southbound != nil, p.dump))
	mux.HandleFunc("GET "+localapi.PathReclaims, offered(p.Reclaims != nil, p.reclaims))
	mux.HandleFunc("GET "+localapi.PathExplain, p.explain)
	mux.HandleFunc("GET "+localapi.PathHistory, p.ledgerHistory)
	mux.HandleFunc("GET "+localapi.PathNodes, offered(p.Cluster != nil, p.nodes))
	mux.HandleFunc("GET "+localapi.PathPools, offered(p.Cluster != nil, p.pools))
	mux.HandleFunc("GET "+localapi.PathClusterCheck, offered(p.Cluster != nil, p.clusterCheck))
	mux.HandleFunc("GET "+localapi.PathDockerPools, withDocker(p.Docker != nil, p.dockerPools))
	mux.HandleFunc("GET "+localapi.PathEventHistory, offered(p.Loop != nil, p.history))
	mux.HandleFunc("GET "+localapi.PathIPAM, offered(p.Cluster != nil, p.contivIPAM))
	mux.HandleFunc("GET "+localapi.PathAllocations, p.allocations)
	mux.HandleFunc("GET "+localapi.PathMap, p.addressMap)
	mux.HandleFunc("GET "+localapi.PathMapSearch, p.mapSearch)
	mux.HandleFunc("GET "+localapi.PathMapChanges, p.mapChanges)
	mux.HandleFunc("GET "+localapi.PathMapFindings, p.mapFindings)
	mux.Handle("GET "+web.Path, web.Handler())
	return mux
}

func (p *RESTAPI) observed() *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET "+localapi.PathMetrics, promhttp.HandlerFor(p.Metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET "+localapi.PathHealthz, func(w http.ResponseWriter, _ *http.Request) {
		s := p.Agent.Status()
		probe(w, s.Live, s.LiveError)
	})
	mux.HandleFunc("GET "+localapi.PathReadyz, func(w http.ResponseWriter, _ *http.Request) {
		s := p.Agent.Status()
		probe(w, s.Ready, s.ReadyError)
	})
	return mux
}

// answerAll answers in JSON to a path that mux does not know: 404, or 405 if another
// method would do. net/http ends a request's context also when the caller
// closes its sending half, as "nc -N" does. Such a caller still reads the answer, so a
// request runs to its end. There are two exceptions: an ADD whose caller has gone is
// released, and events are followed as long as the caller is there.
func answerAll(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := mux.Handler(r); pattern != "" {
			switch r.URL.Path {
			case localapi.PathCNI, localapi.PathEvents:
			default:
				r = r.WithContext(context.WithoutCancel(r.Context()))
			}
			mux.ServeHTTP(w, r)
			return
		}
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			other := r.Clone(r.Context())
			other.Method = method
			if _, pattern := mux.Handler(other); pattern != "" {
				w.Header().Set("Allow", method)
				writeError(
					w,
					http.StatusMethodNotAllowed,
					fmt.Errorf("%s %s: the method is %s", r.Method, r.URL.Path, method),
				)
				return
			}
		}
		writeError(w, http.StatusNotFound, fmt.Errorf("%s %s is not part of the API", r.Method, r.URL.Path))
	})
}

func probe(w http.ResponseWriter, ok bool, why string) {
	if !ok {
		http.Error(w, why, http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// writeJSON writes v with its length, by which the CNI plugin notices an answer that is
// cut off.
func writeJSON(w http.ResponseWriter, status int, v any) {
	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(v); err != nil {
		status = http.StatusInternalServerError
		buf.Reset()
		fmt.Fprintf(&buf, "{\"error\":%q}\n", err.Error())
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(buf.Len()))
	w.WriteHeader(status)
	_, _ = w.Write(buf.Bytes()) // the caller may have gone
}

func writeError(w http.ResponseWriter, status int, err error) {
	writeJSON(w, status, localapi.Error{Error: err.Error()})
}

// readJSON reads the body into v. Unknown fields are an error.
func readJSON(w http.ResponseWriter, r *http.Request, v any) bool {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		err = decode(body, v)
	}
	if err != nil {
		writeError(w, http.StatusBadRequest, fmt.Errorf("body of %s: %w", r.URL.Path, err))
		return false
	}
	return true
}

// decode decodes one JSON value. The decoder would replace each byte that is not
// UTF-8 by the same character, and so make one name of two.
func decode(body []byte, v any) error {
	for i := 0; i < len(body); {
		c, n := utf8.DecodeRune(body[i:])
		if c == utf8.RuneError && n == 1 {
			return fmt.Errorf("byte %d (0x%02x) is not UTF-8: JSON must be UTF-8", i, body[i])
		}
		i += n
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, more := d.Token(); more != io.EOF {
		return errors.New("text follows the JSON value: want one value")
	}
	return nil
}

func (p *RESTAPI) leases(w http.ResponseWriter, _ *http.Request) {
	all := []localapi.Lease{}
	for _, l := range p.Ledger.Leases() {
		all = append(all, leaseOf(l))
	}
	writeJSON(w, http.StatusOK, all)
}

// leaseOf returns a lease as the API shows it.
func leaseOf(l ledger.Lease) localapi.Lease {
	out := localapi.Lease{
		IP:           l.Addr.String(),
		Family:       ledger.FamilyOf(l.Addr).String(),
		Pool:         l.Pool,
		Block:        l.Block.String(),
		State:        l.State.String(),
		Purpose:      l.Purpose.String(),
		Network:      l.Key.Network,
		ContainerID:  l.Key.ContainerID,
		IfName:       l.Key.IfName,
		PodName:      l.Pod.Name,
		PodNamespace: l.Pod.Namespace,
		PodUID:       l.Pod.UID,
		NetNS:        l.NetNS,
		Since:        l.Since,
		Reason:       l.Reason,
		Generation:   l.Generation,
	}
	if l.Purpose == ledger.ForInfra { // its key has a meaning for the ledger only
		out.Network, out.ContainerID = "", ""
	}
	return out
}

func (p *RESTAPI) resync(w http.ResponseWriter, r *http.Request) {
	if err := p.State.Resync(r.Context()); err != nil {
		writeError(w, http.StatusInternalServerError, err)
		return
	}
	writeJSON(w, http.StatusOK, struct{}{})
}

// backup streams the database. What has failed by then follows in a trailer: a backup is
// whole only with the trailer that has its length.
func (p *RESTAPI) backup(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Trailer", localapi.TrailerBytes+", "+localapi.TrailerError)
	n, err := p.Database.Backup(w)
	switch {
	case err == nil:
		w.Header().Set(localapi.TrailerBytes, strconv.FormatInt(n, 10))
		return
	case n == 0:
		w.Header().Del("Trailer")
		writeError(w, http.StatusInternalServerError, err)
	default:
		w.Header().Set(localapi.TrailerError, err.Error())
	}
	p.Log.Error("backup failed", "error", err)
}

func (p *RESTAPI) dump(w http.ResponseWriter, r *http.Request) {
	values, err := p.Southbound.Dump(r.Context())
	if err != nil {
		writeError(w, http.StatusInternalServerError, err)
		return
	}
	out := map[string]json.RawMessage{}
	for k, m := range values {
		if out[k], err = protojson.Marshal(m); err != nil {
			writeError(w, http.StatusInternalServerError, err)
			return
		}
	}
	writeJSON(w, http.StatusOK, out)
}
