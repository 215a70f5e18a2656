# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command trainyard: jobs from files, on top of Slurm's own commands.

It keeps no state of its own: Slurm knows the jobs, and the folder of a job has its file, its logs
and its result. Exit codes: 0 good, 1 the job failed, 2 refused, 3 Slurm does not answer.
"""

import sys

sys.path.insert(0, "/usr/local/lib/trainyard/shared")
from _command_line import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
