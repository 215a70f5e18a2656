"""Jobs as squeue prints them for module_utils/_slurm.py: JOBS is the body of a squeue that prints a
file.
"""

from __future__ import annotations

from ansible_collections.trainyard.gpu.plugins.module_utils._slurm import JOB_FIELDS

# Replaced by the mark that the caller asks for.
MARK = "|7b1f9c42e0d85a36|"
JOBS = (
    'mark=$(echo "$*" | sed \'s/.*--Format=JobID:\\([^,]*\\),.*/\\1/\')\nsed "s/%s/$mark/g" %s/jobs'
)


def a_job(
    number, nodes, state="RUNNING", user="anna", reservation="(null)", end="2026-11-26T12:00:00"
):
    values = dict.fromkeys(JOB_FIELDS, "")
    values.update(
        {
            "JobID": str(number),
            "ArrayJobID": str(number),
            "ArrayTaskID": "N/A",
            "HetJobID": "0",
            "HetJobOffset": "0",
            "UserName": user,
            "State": state,
            "NumNodes": "1",
            "NodeList": nodes,
            "tres-alloc": "cpu=1,mem=1M,node=1,billing=1",
            "PriorityLong": "1",
            "SubmitTime": "2026-11-26T04:00:00",
            "EligibleTime": "2026-11-26T04:00:00",
            "StartTime": "2026-11-26T04:00:00",
            "EndTime": end,
            "TimeLimit": "8:00:00",
            "RestartCnt": "0",
            "Reservation": reservation,
            "Name": "job",
        }
    )
    return "".join(values[field] + MARK for field in JOB_FIELDS) + "\n"
