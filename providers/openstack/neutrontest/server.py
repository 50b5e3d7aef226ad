# SPDX-FileCopyrightText: The Cadastre Authors
# SPDX-License-Identifier: Apache-2.0
"""Starts MariaDB with an empty database, and a Neutron server on it, until its standard input ends.

usage: server.py CONFIGURATION MARIADBD

Both have their files in the working directory.
"""
import atexit
import os
import signal
import subprocess
import sys
import time

configuration, mariadbd = sys.argv[1:]

if os.fork() == 0:  # the servers' processes end with the test that started them, also if it crashes
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)
atexit.register(os.killpg, 0, signal.SIGKILL)  # all of them end with the first

os.makedirs("data", exist_ok=True)
share = os.path.normpath(os.path.join(os.path.dirname(mariadbd), "..", "share", "mysql"))
database = subprocess.Popen([
    mariadbd,
    "--no-defaults",
    "--user=root",
    "--datadir=" + os.path.abspath("data"),
    "--socket=sql.sock",  # in that folder; the whole path may be too long
    "--skip-networking",
    "--skip-grant-tables",  # so the folder needs no tables of the server's own
    "--lc-messages-dir=" + share,
    "--character-sets-dir=" + os.path.join(share, "charsets"),
    "--character-set-server=utf8mb3",
    "--innodb-flush-log-at-trx-commit=0",  # it survives no crash of the machine
    "--innodb-flush-method=nosync",
    "--innodb-doublewrite=0",
    "--innodb-use-native-aio=0",
    "--innodb-file-per-table=0",
    "--innodb-log-file-size=8M",
    "--innodb-buffer-pool-size=32M",
], stdin=subprocess.DEVNULL)

from neutron.common import eventlet_utils

eventlet_utils.monkey_patch()  # before all that opens a socket

import sqlalchemy
from neutron.cmd.eventlet import server
from neutron.db.migration.models import head

url = "mysql+pymysql://root@/{}?unix_socket=data/sql.sock"


def create():
    """Creates the database and its tables once MariaDB answers."""
    engine = sqlalchemy.create_engine(url.format(""))
    while True:
        try:
            engine.execute("CREATE DATABASE neutron")
            break
        except sqlalchemy.exc.OperationalError:
            if database.poll() is not None:
                sys.exit("MariaDB has ended with status %d" % database.returncode)
            time.sleep(0.05)
    engine.dispose()
    engine = sqlalchemy.create_engine(url.format("neutron"))
    head.get_metadata().create_all(engine)
    engine.dispose()


create()
sys.argv = ["neutron-server", "--config-file", configuration]
sys.exit(server.main())
