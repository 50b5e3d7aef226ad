// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ec2

import (
	"context"
	"errors"
	"fmt"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"

	"github.com/cadastre/cadastre/cloud"
)

// The codes of EC2 that this package decides by.
const (
	codeInterfaceNotFound  = "InvalidNetworkInterfaceID.NotFound"
	codeAttachmentNotFound = "InvalidAttachmentID.NotFound"
	codeInterfaceInUse     = "InvalidNetworkInterface.InUse"
	codeParameterValue     = "InvalidParameterValue"
	codeInstanceType       = "InvalidInstanceType"
)

// kinds returns the meaning of EC2's codes in the contract of package cloud.
func kinds() map[string]error {
	return map[string]error{
		"PrivateIpAddressLimitExceeded":     cloud.ErrFull,
		"InsufficientFreeAddressesInSubnet": cloud.ErrFull,
		"InsufficientCidrBlocks":            cloud.ErrFull,
		"NetworkInterfaceLimitExceeded":     cloud.ErrFull,
		"AttachmentLimitExceeded":           cloud.ErrFull,
		"InterfaceLimitExceeded":            cloud.ErrFull,
		"RequestLimitExceeded":              cloud.ErrThrottled,
		"Throttling":                        cloud.ErrThrottled,
		"ThrottlingException":               cloud.ErrThrottled,
		"ThrottledException":                cloud.ErrThrottled,
		"RequestThrottled":                  cloud.ErrThrottled,
		"RequestThrottledException":         cloud.ErrThrottled,
		"EC2ThrottledException":             cloud.ErrThrottled,
		"TooManyRequestsException":          cloud.ErrThrottled,
		"BandwidthLimitExceeded":            cloud.ErrThrottled,
		"InvalidInstanceID.NotFound":        cloud.ErrNoInstance,
		"InvalidInstanceID.Malformed":       cloud.ErrNoInstance,
	}
}

// remedies returns what the user can do about an error, by EC2's code.
func remedies() map[string]string {
	const (
		rate   = "lower the request budget of this program, or ask AWS to raise the limit of EC2 requests"
		access = "the role lacks a permission: providers/ec2/README.md has the policy"
		login  = "the credentials are wrong or have expired: check the role of the pod or the machine"
	)
	return map[string]string{
		"PrivateIpAddressLimitExceeded": "the interface has all addresses that its instance type allows: " +
			"use a larger type, or prefixes",
		"InsufficientFreeAddressesInSubnet": "the subnet has no free addresses: add one in this zone, " +
			"with the tags of --ec2-subnet-tags",
		"InsufficientCidrBlocks": "the subnet has no free block of this length: reserve a range for prefixes " +
			"(aws ec2 create-subnet-cidr-reservation), or add a subnet",
		"NetworkInterfaceLimitExceeded": "raise the quota of network interfaces of the region",
		"AttachmentLimitExceeded":       "the instance type allows no further interface: use a larger type",
		"RequestLimitExceeded":          rate,
		"Throttling":                    rate,
		"UnauthorizedOperation":         access,
		"AccessDenied":                  access,
		"AccessDeniedException":         access,
		"AuthFailure":                   login,
		"InvalidClientTokenId":          login,
		"ExpiredToken":                  login,
		"RequestExpired":                "the clock of this machine is wrong, or the credentials have expired",
		"OptInRequired":                 "the account has no access to this region",
		"InvalidInstanceID.Malformed":   "want an ID such as i-0123456789abcdef0",
	}
}

// code returns EC2's code of an error, or "" for an error that EC2 has not sent.
func code(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

// explain adds to an error of EC2 its meaning and what the user can do.
func explain(err error) error {
	if err == nil {
		return nil
	}
	what := code(err)
	if remedy, known := remedies()[what]; known {
		err = fmt.Errorf("%w (%s)", err, remedy)
	}
	if kind, known := kinds()[what]; known && !errors.Is(err, kind) {
		err = fmt.Errorf("%w: %w", kind, err)
	}
	return err
}

// transient reports whether the same request may succeed in a moment. An error that EC2 has
// not sent leaves open whether the request was done.
func transient(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	what := code(err)
	if errors.Is(kinds()[what], cloud.ErrThrottled) {
		return true
	}
	if status := new(awshttp.ResponseError); errors.As(err, &status) && status.HTTPStatusCode() >= 500 {
		return true
	}
	return what == ""
}

// uncertain reports whether a request that failed may have been done.
func uncertain(err error) bool {
	if errors.Is(kinds()[code(err)], cloud.ErrThrottled) {
		return false
	}
	if status := new(awshttp.ResponseError); errors.As(err, &status) && status.HTTPStatusCode() >= 500 {
		return true
	}
	return code(err) == ""
}
