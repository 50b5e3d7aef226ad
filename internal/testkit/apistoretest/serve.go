// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package apistoretest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/cadastre/cadastre/api/v1alpha1"
)

// request is a request for objects.
type request struct {
	*http.Request
	resource
	group           schema.GroupResource
	verb            string
	namespace, name string
	status          bool // of the status alone
	body            object
}

// path returns the path of the object, below that of its resource.
func (r *request) path() string {
	if r.namespaced && (r.namespace != "" || r.name != "") {
		return r.below() + r.namespace + "/" + r.name
	}
	return r.below() + r.name
}

func (r *request) below() string { return r.group.String() + "/" }

// read returns the resource and the object of a request.
func read(hr *http.Request) (*request, bool) {
	parts := strings.Split(strings.Trim(hr.URL.Path, "/"), "/")
	r := &request{Request: hr}
	switch {
	case len(parts) > 2 && parts[0] == "api" && parts[1] == "v1":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis" && parts[1] == v1alpha1.Group && parts[2] == v1alpha1.Version:
		r.group.Group, parts = v1alpha1.Group, parts[3:]
	default:
		return nil, false
	}
	if len(parts) > 2 && parts[0] == "namespaces" {
		r.namespace, parts = parts[1], parts[2:]
	}
	r.group.Resource = parts[0]
	var ok bool
	if r.resource, ok = resources()[r.group]; !ok || len(parts) > 3 || !r.namespaced && r.namespace != "" {
		return nil, false
	}
	if len(parts) > 1 {
		r.name = parts[1]
	}
	if len(parts) > 2 {
		if r.status = parts[2] == "status"; !r.status || !r.resource.status {
			return nil, false
		}
	}
	switch {
	case hr.Method == http.MethodGet && hr.URL.Query().Get("watch") != "":
		r.verb = "watch"
	case hr.Method == http.MethodGet && r.name == "":
		r.verb = "list"
	default:
		r.verb = map[string]string{
			http.MethodGet: "get", http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete",
		}[hr.Method]
	}
	return r, r.verb != ""
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, hr *http.Request) {
	r, ok := read(hr)
	verb, resource := "get", strings.TrimPrefix(hr.URL.Path, "/")
	if ok {
		verb, resource = r.verb, r.group.Resource
	}
	if err := r.readBody(); err != nil { // before a fault waits: the client may be gone then
		answer(w, nil, apierrors.NewBadRequest(err.Error()))
		return
	}
	f, down := s.choose(verb, resource)
	switch {
	case down:
		hangUp(w)
		return
	case f.kind == fail:
		answer(w, nil, apierrors.NewInternalError(errors.New("an injected fault")))
		return
	case f.kind == refuse:
		answer(
			w,
			nil,
			apierrors.NewForbidden(
				r.group,
				r.name,
				errors.New("ValidatingAdmissionPolicy 'p' with binding 'p' denied request: it is of node b"),
			),
		)
		return
	case f.kind == hold:
		<-f.hold
	}
	switch {
	case hr.URL.Path == "/readyz":
		_, _ = io.WriteString(w, "ok")
	case !ok || s.isUndefined(r):
		http.Error(w, "404 page not found", http.StatusNotFound)
	case verb == "watch" && (f.kind == 0 || f.kind == hold):
		s.watch(w, r)
	default:
		o, err := s.do(r)
		switch f.kind {
		case tear:
			o, err = nil, apierrors.NewInternalError(errors.New("an injected fault"))
		case drop:
			hangUp(w)
			return
		}
		answer(w, o, err)
	}
}

// readBody reads the body of the request.
func (r *request) readBody() error {
	if r == nil || r.verb == "get" || r.verb == "list" || r.verb == "watch" {
		return nil
	}
	data, err := io.ReadAll(r.Body)
	if r.body = (object{}); err == nil && len(data) > 0 {
		err = utiljson.Unmarshal(data, &r.body) // whole numbers stay so
	}
	return err
}

func (s *Server) isUndefined(r *request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.undefined[r.group.Resource]
}

// hangUp breaks the connection.
func hangUp(w http.ResponseWriter) {
	if h, ok := w.(http.Hijacker); ok {
		if conn, _, err := h.Hijack(); err == nil {
			_ = conn.Close()
		}
	}
}

func answer(w http.ResponseWriter, o any, err error) {
	code := http.StatusOK
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		st := status.Status()
		st.Kind, st.APIVersion = "Status", "v1"
		o, code = st, int(st.Code)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(o)
}

// do executes a request.
func (s *Server) do(r *request) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.verb {
	case "list":
		return s.listed(r)
	case "create":
		return s.create(r)
	}
	was := s.at(r.path())
	if was == nil {
		return nil, apierrors.NewNotFound(r.group, r.name)
	}
	switch r.verb {
	case "update":
		return s.update(r, was, r.body)
	case "patch":
		now := merge(was, r.body).(object)
		if r.Header.Get("Content-Type") == string(types.StrategicMergePatchType) {
			mergeConditions(now, was)
		}
		return s.update(r, was, now)
	case "delete":
		return s.remove(r, was)
	}
	return was, nil
}

func (s *Server) create(r *request) (any, error) {
	m := meta(r.body)
	r.name, _ = m["name"].(string)
	switch {
	case r.name == "":
		return nil, apierrors.NewInvalid(
			r.kindOf(),
			"",
			field.ErrorList{field.Required(field.NewPath("metadata", "name"), "name or generateName is required")},
		)
	case s.at(r.path()) != nil:
		return nil, apierrors.NewAlreadyExists(r.group, r.name)
	case m["resourceVersion"] != nil && m["resourceVersion"] != "":
		return nil, apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")
	}
	s.born++
	m["uid"] = fmt.Sprintf("00000000-0000-4000-8000-%012d", s.born)
	m["creationTimestamp"] = "2000-01-01T00:00:00Z"
	if r.namespaced {
		m["namespace"] = r.namespace
	}
	if r.kind == "Pod" {
		r.body["status"] = object{"phase": "Pending"}
	} else if r.resource.status && !r.lax {
		delete(r.body, "status")
	}
	r.head(r.body)
	return s.put(r.path(), r.body), nil
}

func (r *request) kindOf() schema.GroupKind {
	return schema.GroupKind{Group: r.group.Group, Kind: r.kind}
}

// head sets the kind and the version of the object.
func (r *request) head(o object) {
	o["kind"], o["apiVersion"] = r.kind, "v1"
	if r.group.Group != "" {
		o["apiVersion"] = v1alpha1.GroupVersion().String()
	}
}

func (s *Server) update(r *request, was, now object) (any, error) {
	now = runtime.DeepCopyJSON(now)
	m, old := meta(now), meta(was)
	switch version, _ := m["resourceVersion"].(string); {
	case m["name"] != nil && m["name"] != r.name:
		return nil, apierrors.NewBadRequest("the name of the object does not match the name on the URL")
	case version == "" && !r.lax:
		return nil, apierrors.NewInvalid(
			r.kindOf(),
			r.name,
			field.ErrorList{
				field.Invalid(field.NewPath("metadata", "resourceVersion"), 0, "must be specified for an update"),
			},
		)
	case version != "" && version != old["resourceVersion"]:
		return nil, apierrors.NewConflict(
			r.group,
			r.name,
			errors.New("the object has been modified; please apply your changes to the latest version and try again"),
		)
	case m["uid"] != nil && m["uid"] != old["uid"]:
		//nolint:staticcheck // the text of a real API server
		err := fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", m["uid"], old["uid"])
		return nil, apierrors.NewConflict(r.group, r.name, err)
	}
	for _, fixed := range []string{"name", "namespace", "uid", "creationTimestamp", "resourceVersion"} {
		if delete(m, fixed); old[fixed] != nil {
			m[fixed] = old[fixed]
		}
	}
	r.head(now)
	if r.resource.status { // an update of the status changes only that, the other one all but that
		kept := now
		if r.status {
			kept = runtime.DeepCopyJSON(was)
			kept["status"] = now["status"]
		} else if delete(kept, "status"); was["status"] != nil {
			kept["status"] = was["status"]
		}
		now = kept
	}
	if reflect.DeepEqual(now, was) {
		return was, nil
	}
	return s.put(r.path(), now), nil
}

func (s *Server) remove(r *request, was object) (any, error) {
	data, err := json.Marshal(r.body)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	var o metav1.DeleteOptions
	if err := json.Unmarshal(data, &o); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if p := o.Preconditions; p != nil &&
		(p.ResourceVersion != nil && *p.ResourceVersion != meta(was)["resourceVersion"] || p.UID != nil && string(*p.UID) != meta(was)["uid"]) {
		return nil, apierrors.NewConflict(r.group, r.name, errors.New("the precondition of the deletion does not hold"))
	}
	s.put(r.path(), nil)
	return metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess}, nil
}

// listed returns the answer to a list.
func (s *Server) listed(r *request) (any, error) {
	q := r.URL.Query()
	match, err := r.matcher()
	if err != nil {
		return nil, err
	}
	at := s.rev
	if v := q.Get("resourceVersion"); v != "" && v != "0" {
		rev, err := strconv.ParseInt(v, 10, 64)
		switch exact := q.Get("resourceVersionMatch") == string(metav1.ResourceVersionMatchExact); {
		case err != nil:
			return nil, apierrors.NewBadRequest("resourceVersion: " + err.Error())
		case rev > s.rev:
			return nil, tooLarge(rev, s.rev)
		case exact && rev < s.compacted:
			return nil, expiredError(rev)
		case exact:
			at = rev
		}
	}
	items := s.list(r.path(), at, match)
	m := object{"resourceVersion": fmt.Sprint(at)}
	if limit, _ := strconv.Atoi(q.Get("limit")); limit > 0 && limit < len(items) {
		items, m["continue"] = items[:limit], "there is more"
	}
	all := object{"metadata": m, "items": items}
	r.head(all)
	all["kind"] = r.kind + "List"
	return all, nil
}

// matcher returns the field selector of a request.
func (r *request) matcher() (func(object) bool, error) {
	sel, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	for _, x := range sel.Requirements() {
		if x.Field != "metadata.name" && x.Field != "metadata.namespace" &&
			(x.Field != "spec.nodeName" || r.kind != "Pod") {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("field label not supported: %s", x.Field))
		}
	}
	return func(o object) bool {
		set := fields.Set{}
		for name, at := range map[string][2]string{"metadata.name": {"metadata", "name"}, "metadata.namespace": {"metadata", "namespace"}, "spec.nodeName": {"spec", "nodeName"}} {
			part, _ := o[at[0]].(object)
			set[name], _ = part[at[1]].(string)
		}
		return sel.Matches(set)
	}, nil
}

// mergeConditions keeps each condition of was whose type now does not have: a strategic
// merge patch merges status.conditions by type.
func mergeConditions(now, was object) {
	conditions := func(o object) []any {
		status, _ := o["status"].(object)
		all, _ := status["conditions"].([]any)
		return all
	}
	all := conditions(now)
	for _, old := range conditions(was) {
		if !slices.ContainsFunc(all, func(c any) bool { return c.(object)["type"] == old.(object)["type"] }) {
			all = append(all, old)
		}
	}
	if status, ok := now["status"].(object); ok && all != nil {
		status["conditions"] = all
	}
}

// merge applies a JSON merge patch.
func merge(to, patch any) any {
	p, ok := patch.(object)
	if !ok {
		return patch
	}
	out := object{}
	if t, ok := to.(object); ok {
		out = runtime.DeepCopyJSON(t)
	}
	for key, x := range p {
		if x == nil {
			delete(out, key)
		} else {
			out[key] = merge(out[key], x)
		}
	}
	return out
}
