// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	"github.com/spf13/cobra"
)

// namespaceFlag is the flag that selects the pods of one namespace of Kubernetes.
const namespaceFlag = "namespace"

// addNamespace adds -n to a verb about pods.
func addNamespace(cmd *cobra.Command, namespace *string, usage string) {
	cmd.Flags().StringVarP(namespace, namespaceFlag, "n", "", usage)
	completeValues(cmd, namespaceFlag)
}

// checkNamespace refuses a value of -n that no namespace can have.
func checkNamespace(namespace string) error {
	if strings.Trim(namespace, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return usagef("--namespace: %q is not a namespace: write one such as kube-system", namespace)
	}
	return nil
}

// fullPod returns NAMESPACE/NAME of a pod. With -n the name is enough.
func fullPod(pod, namespace string) (string, error) {
	if err := checkNamespace(namespace); err != nil {
		return "", err
	}
	of, _, whole := strings.Cut(pod, "/")
	switch {
	case namespace == "":
	case !whole:
		pod = namespace + "/" + pod
	case of != namespace:
		return "", usagef("--namespace: pod %q is not in namespace %q: leave one of both out", pod, namespace)
	}
	return pod, checkPod(pod)
}

// inNamespace reports whether a pod, NAMESPACE/NAME, is of a namespace; every pod is of "".
func inNamespace(pod, namespace string) bool {
	return namespace == "" || strings.HasPrefix(pod, namespace+"/")
}
