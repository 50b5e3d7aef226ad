// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package openstack

// MsgOverlapped is the message of a writer whose update has overlapped with another one.
const MsgOverlapped = msgOverlapped
