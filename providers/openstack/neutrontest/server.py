# SPDX-FileCopyrightText: The Cadastre Authors
# SPDX-License-Identifier: Apache-2.0
"""Starts a Neutron server with a new database, until its standard input ends.

usage: server.py DATABASE CONFIGURATION
"""
import os
import signal
import sys

database, configuration = sys.argv[1:]

if os.fork() == 0:  # the server's processes end with the test that started them, also if it crashes
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)

from neutron.common import eventlet_utils

eventlet_utils.monkey_patch()  # before all that opens a socket

import sqlalchemy
from neutron.cmd.eventlet import server
from neutron.db.migration.models import head

if not os.path.exists(database):
    engine = sqlalchemy.create_engine("sqlite:///" + database)
    head.get_metadata().create_all(engine)
    engine.dispose()

sys.argv = ["neutron-server", "--config-file", configuration]
sys.exit(server.main())
